"""PolicyTrainer trains the objective of the model, whatever its loss is, or refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from astkit import Gate, RandomSubset
from tests.integrations.loops import assert_same
from tests.integrations.test_huggingface import BATCH, LENGTH, TOKENS, WORDS, N, Texts, trainer_of

SIZES: dict[str, Any] = {"vocab_size": WORDS, "hidden_size": 8, "intermediate_size": 16}
SIZES |= {"num_hidden_layers": 1, "num_attention_heads": 2}
TEXT: dict[str, Any] = SIZES | {"num_key_value_heads": 2, "bos_token_id": None}
TEXT |= {"eos_token_id": None, "pad_token_id": None}
RANDOM = torch.Generator().manual_seed(0)
FLAGS = torch.randint(0, 2, (N, 5), generator=RANDOM).float()
TARGETS = torch.randn(N, 3, generator=RANDOM)
SPANS = torch.randint(0, LENGTH, (N, 2), generator=RANDOM)
PICTURES = torch.randn(N, 3, 4, 4, generator=RANDOM)
IMAGE = WORDS - 1  # the token that stands for a patch


def bert(problem: str, labels: int) -> Any:
    import transformers

    dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    config = transformers.BertConfig(
        **SIZES, **dropout, num_labels=labels, problem_type=problem, max_position_embeddings=16
    )
    return transformers.BertForSequenceClassification(config)


def questions() -> Any:
    import transformers

    dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    config = transformers.BertConfig(**SIZES, **dropout, max_position_embeddings=16)
    return transformers.BertForQuestionAnswering(config)


def llava() -> Any:
    import transformers

    vision = transformers.CLIPVisionConfig(
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=4,
        patch_size=2,
    )
    text = transformers.LlamaConfig(**TEXT)
    config = transformers.LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=IMAGE, image_seq_length=4
    )
    return transformers.LlavaForConditionalGeneration(config)


def mixtral(router: bool = False) -> Any:
    import transformers

    config = transformers.MixtralConfig(
        **TEXT, num_local_experts=4, num_experts_per_tok=2, output_router_logits=router
    )
    return transformers.MixtralForCausalLM(config)


def rows_of(kind: str) -> Texts:
    rows = []
    for number in range(N):
        row = {"input_ids": TOKENS[number].clamp_max(IMAGE - 1)}
        if kind in ("labels", "targets"):
            row["labels"] = (FLAGS if kind == "labels" else TARGETS)[number]
        elif kind == "spans":
            row["start_positions"], row["end_positions"] = SPANS[number]
        else:
            if kind == "pictures":
                row["input_ids"][:4] = IMAGE
                row["pixel_values"] = PICTURES[number]
            row["labels"] = row["input_ids"].clone()
            row["labels"][4 + number % 3 :] = -100
        rows.append(row)
    return Texts(rows)


MODELS: dict[str, Any] = {
    "labels": lambda: bert("multi_label_classification", 5),
    "targets": lambda: bert("regression", 3),
    "spans": questions,
    "pictures": llava,
    "experts": mixtral,
}


def made(make: Any) -> Any:
    pytest.importorskip("transformers", reason="transformers is not installed")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make()


@pytest.mark.parametrize("kind", MODELS)
def test_with_every_row_the_objective_is_the_models_own(kind: str, tmp_path: Path) -> None:
    trained = []
    for policy in (Gate(1.0), None):
        model = made(MODELS[kind])
        options = {"max_steps": 4, "train_sampling_strategy": "sequential"}
        trainer_of(policy, tmp_path, model, rows_of(kind), **options).train()
        trained.append(model)
    assert_same(*trained)


@pytest.mark.parametrize("kind", ["labels", "spans"])
def test_losses_of_a_models_own_kind_are_known_row_by_row(kind: str, tmp_path: Path) -> None:
    model, data = made(MODELS[kind]), rows_of(kind)
    trainer = trainer_of(Gate(0.5), tmp_path, model, data, max_steps=1)
    batch = {name: torch.stack([row[name] for row in data.rows[:BATCH]]) for name in data.rows[0]}
    model.train()
    seen: list[torch.Tensor] = []
    trainer.policy.choose = lambda scored: seen.append(scored.losses)
    trainer.compute_loss(model, batch)
    model.eval()
    rows = [{name: part[row : row + 1] for name, part in batch.items()} for row in range(BATCH)]
    expected = torch.stack([model(**row).loss for row in rows])
    torch.testing.assert_close(seen[0], expected)


def test_a_loss_that_depends_on_the_other_rows_is_refused(tmp_path: Path) -> None:
    model = made(lambda: mixtral(router=True))
    trainer = trainer_of(RandomSubset(0.5), tmp_path, model, rows_of("experts"), max_steps=1)
    with pytest.raises(ValueError, match=r"is no mean over rows.*output_router_logits=False"):
        trainer.train()


def test_several_processes_cannot_train_row_by_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may select different numbers of rows, and every pass of theirs is synchronised."""
    model, data = made(MODELS["labels"]), rows_of("labels")
    trainer = trainer_of(Gate(0.5), tmp_path, model, data, max_steps=1)
    batch = {name: torch.stack([row[name] for row in data.rows[:BATCH]]) for name in data.rows[0]}
    monkeypatch.setattr("astkit.distributed.world", lambda: 2)
    with pytest.raises(ValueError, match="with several processes a loss other than cross-entropy"):
        trainer.compute_loss(model.train(), batch)
