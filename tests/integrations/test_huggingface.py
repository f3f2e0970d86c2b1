"""The Trainer of transformers with a policy: the kit's own loop, the model's own loss, resuming."""

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from astkit import Gate, Policy, RandomSubset, Selection, Weighted, joined
from tests import build
from tests.build import refused
from tests.gating.policies.cells import SelectiveBackprop
from tests.gating.without_float64 import WithoutFloat64
from tests.integrations import loops
from tests.integrations.loops import POLICIES, assert_same

pytestmark = pytest.mark.full
N, BATCH, LENGTH, WORDS = 30, 4, 7, 19
TOKENS = torch.randint(0, WORDS, (36, LENGTH), generator=torch.Generator().manual_seed(0))


def texts(padded: bool, count: int = N) -> Any:
    """Rows with labels; with ``padded``, of different lengths."""
    rows = []
    for number, tokens in enumerate(TOKENS[:count]):
        labels = tokens.clone()
        if padded:
            labels[3 + number % (LENGTH - 2) :] = -100
        rows.append({"input_ids": tokens, "labels": labels})
    return build.as_dataset(rows)


def language_model(kind: str = "llama", dropout: float = 0.0) -> Any:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes: dict[str, Any] = {"vocab_size": WORDS}
    if kind == "gpt2":
        sizes |= {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}
        sizes |= {"bos_token_id": None, "eos_token_id": None}
        sizes |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
        config: Any = transformers.GPT2Config(**sizes)
    else:
        sizes |= {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1}
        sizes |= {"num_attention_heads": 2, "attention_dropout": dropout}
        config = transformers.LlamaConfig(**sizes, bos_token_id=None, eos_token_id=None)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return transformers.AutoModelForCausalLM.from_config(config)


def trainer_of(policy: Any, folder: Path, model: Any, data: Any, **options: Any) -> Any:
    import transformers

    from astkit.integrations.huggingface import PolicyTrainer

    given: dict[str, Any] = {"per_device_train_batch_size": BATCH, "report_to": "none"}
    given |= {
        "use_cpu": True,
        "disable_tqdm": True,
        "save_strategy": "no",
        "lr_scheduler_type": "constant",
    }
    given |= {"max_grad_norm": 0.0, "learning_rate": 0.1, "optim": "sgd", "logging_strategy": "no"}
    args = transformers.TrainingArguments(str(folder), **given | options)
    if policy is None:
        return transformers.Trainer(model, args, train_dataset=data)
    return PolicyTrainer(model, args, train_dataset=data, policy=policy)


def own_loop(policy: Any, model: nn.Module, steps: int, data: Any) -> nn.Module:
    from astkit.integrations.huggingface import causal_losses

    options = {"batch_size": BATCH, "criterion": causal_losses}
    return loops.own_loop(policy, data, model, **options, steps=steps)


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_before_loading(name: str, tmp_path: Path) -> None:
    # of GPT-2's labels, the Trainer counts those that its loss leaves out as well
    model, twin, data = language_model(), language_model(), texts(padded=False)
    trainer = trainer_of(POLICIES[name](), tmp_path, model, data, max_steps=30)
    trainer.train()
    assert trainer.state.global_step == 30
    assert_same(model, own_loop(POLICIES[name](), twin, 30, data))


@pytest.mark.parametrize("policy", [None, Weighted(torch.ones(N + 6))], ids=["dense", "weighted"])
def test_rows_of_a_target_are_drawn_by_a_policy_that_asks(policy: Any, tmp_path: Path) -> None:
    model, twin = language_model(), language_model()
    both = joined(texts(padded=False), build.as_dataset(texts(padded=False, count=36).given[N:]))
    trainer = trainer_of(policy or Policy(), tmp_path, model, both, num_train_epochs=2)
    drawn: list[int] = []
    own = trainer.compute_loss

    def watched(model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        drawn.extend(inputs["astkit_index"].tolist())
        return own(model, inputs, *args, **options)

    trainer.compute_loss = watched
    trainer.train()
    steps = 2 * -(-N // BATCH)
    assert (trainer.state.global_step, len(drawn)) == (steps, 2 * N)
    assert (max(drawn) >= N) == (policy is not None)
    if policy is not None:
        assert_same(model, own_loop(policy, twin, steps, both))


def test_a_gate(tmp_path: Path) -> None:
    model, twin, data = language_model(), language_model(), texts(padded=False)
    trainer = trainer_of(
        Gate(0.5), tmp_path, model, data, max_steps=20, train_sampling_strategy="sequential"
    )
    trainer.train()
    assert_same(model, own_loop(Gate(0.5), twin, 20, DataLoader(data, BATCH)))


def test_a_device_without_float64_is_enough(tmp_path: Path) -> None:
    model, rows = language_model(), texts(padded=True, count=BATCH).given
    batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    trainer = trainer_of(RandomSubset(0.5), tmp_path, model, texts(padded=True))
    model.train()
    there = batch | {"labels": WithoutFloat64.on(batch["labels"])}
    found = [trainer.compute_loss(model, dict(inputs)).item() for inputs in (batch, there)]
    assert found[0] == found[1]


@pytest.mark.parametrize("accumulated", [1, 3])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("policy", [RandomSubset(1.0), Gate(1.0)], ids=["plan", "choose"])
def test_the_loss_is_the_models_own(policy, kind, accumulated, tmp_path):
    """With all rows selected, the losses and weights are those of the Trainer itself."""
    policy = type(policy)(1.0)
    rows: list[list[int]] = []
    found = []
    for each in (policy, None):
        model, data = language_model(kind), texts(padded=True, count=36)  # whole batches
        if each is None and rows:
            data = build.as_dataset([data[row] for row in rows])
        trainer = trainer_of(
            each,
            tmp_path,
            model,
            data,
            max_steps=8,
            gradient_accumulation_steps=accumulated,
            train_sampling_strategy="sequential",
            logging_strategy="steps",
            logging_steps=1,
        )
        if each is not None and isinstance(each, RandomSubset):
            mean = type(trainer).compute_loss

            def noting(model, inputs, *args, trainer=trainer, mean=mean, **options):
                rows.extend(inputs["astkit_index"].tolist())
                return mean(trainer, model, inputs, *args, **options)

            trainer.compute_loss = noting
        trainer.train()
        found.append(
            (model, [each["loss"] for each in trainer.state.log_history if "loss" in each])
        )
    (model, losses), (twin, expected) = found
    assert losses == pytest.approx(expected, abs=1e-6)
    assert_same(model, twin)


def resumable(folder: Path, policy: Any, **options: Any) -> Any:
    """A trainer of three epochs in steps of two batches, with dropout."""
    options |= {"num_train_epochs": 3, "gradient_accumulation_steps": 2}
    model = language_model("gpt2", dropout=0.1)
    return trainer_of(policy, folder, model, texts(padded=True), **options)


@pytest.mark.parametrize(("name", "step"), [("dense", 4), ("random", 2), ("gate", 3), ("gate", 6)])
def test_a_resumed_run_equals_the_uninterrupted_one(name: str, step: int, tmp_path: Path) -> None:
    """At the end of an epoch of the policy; a gate has none."""
    make: Any = POLICIES.get(name, lambda: Gate(0.5))
    whole = resumable(tmp_path, make(), save_strategy="steps", save_steps=step)
    whole.train()
    later = resumable(tmp_path, make())
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "checkpoint-")
        later.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
    assert later.state.global_step == whole.state.global_step
    assert later.state.epoch == whole.state.epoch
    assert_same(later.model, whole.model, atol=0)


@pytest.mark.parametrize("name", POLICIES)
def test_within_an_epoch_its_rows_may_come_twice_and_a_resumed_run_says_so(name, tmp_path):
    def rows_of_run(trainer: Any, **resuming: Any) -> list[tuple[int, int]]:
        """Epoch of the policy and number of each row that is trained on."""
        seen: list[tuple[int, int]] = []
        own = trainer.compute_loss

        def noting(model: Any, inputs: Any, *rest: Any, **options: Any) -> Any:
            rows = inputs["astkit_index"].tolist()
            seen.extend((trainer.policy.begun, row) for row in rows)
            return own(model, inputs, *rest, **options)

        trainer.compute_loss = noting
        trainer.train(**resuming)
        return seen

    saving = {"save_strategy": "steps", "save_steps": 1, "max_steps": 12}
    whole = rows_of_run(resumable(tmp_path, POLICIES[name](), **saving))
    later = resumable(tmp_path, POLICIES[name](), max_steps=12)
    with pytest.warns(UserWarning, match="checkpoint-1 lies within an epoch .* begins again: rows"):
        again = rows_of_run(later, resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert later.state.global_step == 12
    assert again[: 2 * BATCH] == whole[: 2 * BATCH]


def test_another_policy_is_not_resumed(tmp_path: Path) -> None:
    saving = {"max_steps": 1, "save_strategy": "steps", "save_steps": 1}
    data = texts(padded=True)
    trainer_of(RandomSubset(0.5), tmp_path, language_model(), data, **saving).train()
    for policy, words in (
        (RandomSubset(0.4), r"other settings \(rate was 0.5 and is 0.4\): restore them"),
        (POLICIES["infobatch"](), r"\(class was 'RandomSubset' and is 'InfoBatch', "),
    ):
        later = trainer_of(policy, tmp_path, language_model(), data)
        refused((partial(later.train, resume_from_checkpoint=True), words))


def test_what_was_steered_is_no_other_policy(tmp_path: Path) -> None:
    saving = {"max_steps": 1, "save_strategy": "steps", "save_steps": 1}
    first = trainer_of(Gate(0.5), tmp_path, language_model(), texts(padded=True), **saving)
    first.policy.steer("controller", "top_k")
    first.policy.rate = 0.25
    first.train()
    later = trainer_of(Gate(0.5), tmp_path, language_model(), texts(padded=True), max_steps=2)
    later.train(resume_from_checkpoint=True)
    assert (later.policy.rate, type(later.policy.controller).__name__) == (0.25, "TopK")


def test_a_trial_of_a_search_keeps_its_state_in_its_own_checkpoint(tmp_path: Path) -> None:
    saving = {"max_steps": 1, "save_strategy": "steps", "save_steps": 1}
    trainer = trainer_of("gate", tmp_path, language_model(), texts(padded=True), **saving)
    trainer._get_output_dir = lambda trial: str(tmp_path / "run-0")
    trainer.train()
    assert [path.parent for path in tmp_path.rglob("policy.json")] == [
        tmp_path / "run-0" / "checkpoint-1"
    ]


def test_a_policy_is_given_the_data_of_evaluation(tmp_path: Path) -> None:
    held = texts(padded=True, count=4)
    trainer = trainer_of(RandomSubset(0.5), tmp_path, language_model(), texts(padded=True))
    for given, held_back in ((held, held), ({"a": held}, None), (None, None)):
        trainer.eval_dataset = given
        trainer.get_train_dataloader()
        assert trainer.policy.loop.sampler.epoch.facts["validation"] is held_back


def test_whole_numbers_of_a_regression_are_no_classes_for_a_policy(tmp_path: Path) -> None:
    for changes, classes in (
        ({}, None),
        ({"num_labels": 1}, False),
        ({"num_labels": 3, "problem_type": "regression"}, False),
        ({"num_labels": 3, "problem_type": "single_label_classification"}, None),
    ):
        model = language_model()
        for name, value in changes.items():
            setattr(model.config, name, value)
        trainer = trainer_of(RandomSubset(0.5), tmp_path, model, texts(padded=True))
        trainer.get_train_dataloader()
        assert trainer.policy.loop.sampler.epoch.facts["classes"] is classes


def test_refusals(tmp_path: Path) -> None:
    model = language_model()
    data = texts(padded=False)
    with pytest.raises(ValueError, match="label_smoothing_factor average over rows"):
        trainer_of(Gate(0.5), tmp_path, model, data, label_smoothing_factor=0.1)
    plain = trainer_of(
        None, tmp_path, model, data, max_steps=1, save_strategy="steps", save_steps=1
    )
    plain.train()
    with pytest.raises(ValueError, match=r"checkpoint-1 has no policy\.json: resume a complete"):
        trainer_of(Gate(0.5), tmp_path, model, data).train(resume_from_checkpoint=True)

    stream = build.as_stream(data.given)
    with pytest.raises(ValueError, match="a policy that selects after scoring, such as Gate"):
        trainer_of(RandomSubset(0.5), tmp_path, model, stream, max_steps=2).train()
    streamed = trainer_of(Gate(0.5), tmp_path, model, stream, max_steps=2)
    streamed.train()
    assert streamed.policy.batches == 2


def test_a_batch_without_a_selected_row_changes_nothing(tmp_path: Path) -> None:
    class Nothing(Policy):
        def choose(self, batch: Any) -> Selection:
            return Selection(torch.empty(0, dtype=torch.int64))

    model, twin = language_model(), language_model()
    trainer_of(Nothing(), tmp_path, model, texts(padded=False), max_steps=3).train()
    assert_same(model, twin, atol=0)


@pytest.mark.parametrize(
    "policy", [Gate(0.5), RandomSubset(1.0), RandomSubset(0.5), SelectiveBackprop()]
)
def test_an_incomplete_last_batch_is_dropped_if_asked_for(policy: Any, tmp_path: Path) -> None:
    data = texts(padded=False)
    for drop in (True, False):
        options = {"num_train_epochs": 1, "dataloader_drop_last": drop}
        trainer = trainer_of(policy, tmp_path, language_model(), data, **options)
        loader = trainer.get_train_dataloader()
        sizes = [len(batch["labels"]) for batch in loader]
        assert len(loader) == len(sizes)
        assert (set(sizes) == {BATCH}) is drop
    few = trainer_of(RandomSubset(0.1), tmp_path, language_model(), data, dataloader_drop_last=True)
    refused((few.train, "selected too few rows for a batch: raise its rate"))


def test_a_collate_function_that_leaves_rows_out_is_refused(tmp_path: Path) -> None:
    trainer = trainer_of("infobatch", tmp_path, language_model(), texts(padded=False))
    trainer.data_collator = lambda rows: torch.utils.data.default_collate(rows[1:])
    refused((trainer.train, "a batch of 3 rows was made from 4 rows of the data"))
