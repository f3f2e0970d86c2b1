"""PolicyTrainer trains the objective of the model, whatever its loss is, or refuses."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from astkit import Gate
from tests import build
from tests.integrations.loops import assert_same
from tests.integrations.test_huggingface import TOKENS, WORDS, N, trainer_of

SIZES: dict[str, Any] = {"vocab_size": WORDS, "hidden_size": 8, "intermediate_size": 16}
SIZES |= {"num_hidden_layers": 1, "num_attention_heads": 2}
TEXT: dict[str, Any] = SIZES | {"num_key_value_heads": 2, "bos_token_id": None}
TEXT |= {"eos_token_id": None, "pad_token_id": None}
RANDOM = torch.Generator().manual_seed(0)
FLAGS = torch.randint(0, 2, (N, 5), generator=RANDOM).float()
PICTURES = torch.randn(N, 3, 4, 4, generator=RANDOM)
IMAGE = WORDS - 1  # the token that stands for a patch


def bert() -> Any:
    """A classifier of several labels a row."""
    import transformers

    dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    problem = {"num_labels": 5, "problem_type": "multi_label_classification"}
    config = transformers.BertConfig(**SIZES, **dropout, **problem, max_position_embeddings=16)
    return transformers.BertForSequenceClassification(config)


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


def rows_of(kind: str) -> Any:
    rows = []
    for number in range(N):
        row = {"input_ids": TOKENS[number].clamp_max(IMAGE - 1)}
        if kind == "labels":
            row["labels"] = FLAGS[number]
        else:
            if kind == "pictures":
                row["input_ids"][:4] = IMAGE
                row["pixel_values"] = PICTURES[number]
            row["labels"] = row["input_ids"].clone()
            row["labels"][4 + number % 3 :] = -100
        rows.append(row)
    return build.as_dataset(rows)


MODELS: dict[str, Any] = {
    "labels": bert,
    "pictures": llava,
    "experts": mixtral,
    "router": lambda: mixtral(router=True),
}


def made(make: Any) -> Any:
    pytest.importorskip("transformers", reason="transformers is not installed")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make()


def binary(outputs: Any, batch: Any) -> torch.Tensor:
    logits, labels = outputs.logits, batch["labels"]
    return F.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(1)


@pytest.mark.parametrize(
    ("kind", "criterion"), [("pictures", None), ("experts", None), ("labels", binary)]
)
def test_with_every_row_the_objective_is_the_models_own(kind, criterion, tmp_path):
    trained = []
    for policy in (Gate(1.0), None):
        model = made(MODELS[kind])
        options = {"max_steps": 4, "train_sampling_strategy": "sequential"}
        trainer = trainer_of(policy, tmp_path, model, rows_of(kind), **options)
        trainer.criterion = criterion
        trainer.train()
        trained.append(model)
    assert_same(*trained)


def tagger() -> Any:
    import transformers

    return transformers.BertForTokenClassification(transformers.BertConfig(**SIZES, num_labels=5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head", [0.0, 1.0])
@pytest.mark.parametrize(("kind", "shifted"), [(tagger, False), (mixtral, True)])
def test_labels_are_shifted_where_the_models_loss_shifts_them(kind, shifted, head, dtype, tmp_path):
    """Also where shifting changes nothing within rounding, as with a head of zeros."""
    model = made(kind).to(dtype)
    (model.classifier if kind is tagger else model.lm_head).weight.data.mul_(head)
    trainer = trainer_of(Gate(0.5), tmp_path, model, rows_of("tokens"))
    labels = TOKENS % 5
    labels[:, 0] = -100  # as that of a special token is
    batch = {"input_ids": TOKENS, "labels": labels}
    criterion = trainer._default_criterion(model, batch)
    assert criterion.__name__ == ("causal_losses" if shifted else "cross_entropy_rows")
    batch["labels"] = torch.full_like(TOKENS, -100)
    with pytest.raises(ValueError, match=r"^all labels of the first batch are -100, .*pass crit"):
        trainer._default_criterion(model, batch)


@pytest.mark.parametrize("kind", ["labels", "router"])
def test_another_loss_needs_a_criterion(kind: str, tmp_path: Path) -> None:
    trainer = trainer_of(Gate(0.5), tmp_path, made(MODELS[kind]), rows_of(kind), max_steps=1)
    with pytest.raises(ValueError, match=r"is not the cross-entropy .*pass criterion=.*router_lo"):
        trainer.train()
