"""Data on disk, also of Hugging Face datasets and WebDataset: planned, or gated as a stream."""

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from astkit import Gate, Loader, RandomSubset, Trainer
from astkit.datasets import as_loader
from astkit.datasets.facts import class_labels
from tests import build
from tests.build import refused

N, SHARDS, BATCH = 60, 4, 8
X = torch.randn(N, 5, generator=torch.Generator().manual_seed(0))
Y = torch.arange(N) % 3


def model():
    return build.network(5, 3)


def pair(rows):
    return torch.stack([row["x"] for row in rows]), torch.stack([row["label"] for row in rows])


def weights(trained):
    return torch.cat([part.flatten() for part in trained.state_dict().values()])


@pytest.fixture
def table():
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    return datasets.Dataset.from_dict({"x": X.numpy(), "label": Y.numpy()})


class Shuffled(IterableDataset):
    """The rows in an order that depends on the epoch."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        random = torch.Generator().manual_seed(self.epoch)
        return ((X[row], Y[row]) for row in torch.randperm(N, generator=random))


@pytest.fixture(params=["torch", "datasets", "webdataset", "webloader"])
def stream(request, tmp_path):
    """Makes a shuffled stream of batches, which other libraries read from files in shards."""
    if request.param == "torch":
        return lambda: DataLoader(Shuffled(), BATCH)
    if request.param == "datasets":
        table = request.getfixturevalue("table")
        for shard in range(SHARDS):
            part = table.shard(SHARDS, shard, contiguous=True)
            part.to_json(tmp_path / f"{shard}.jsonl")
        from datasets import IterableDataset

        def make():
            paths = [str(tmp_path / f"{shard}.jsonl") for shard in range(SHARDS)]
            rows = IterableDataset.from_json(paths)
            rows = rows.shuffle(seed=1, buffer_size=10).with_format("torch")
            return DataLoader(rows, BATCH, collate_fn=pair)

        return make
    wds = pytest.importorskip("webdataset", reason="webdataset is not installed")
    for shard, rows in enumerate(torch.arange(N).split(N // SHARDS)):
        with wds.TarWriter(str(tmp_path / f"{shard}.tar")) as writer:
            for row in rows.tolist():
                writer.write({"__key__": f"{row:03d}", "npy": X[row].numpy(), "cls": int(Y[row])})

    def make():
        urls = str(tmp_path / "{0..3}.tar")
        rows = wds.WebDataset(urls, shardshuffle=4, detshuffle=True, seed=1)
        rows = rows.compose(wds.detshuffle(10)).decode().to_tuple("npy", "cls")
        if request.param == "webdataset":
            return rows
        return wds.WebLoader(rows.batched(BATCH), batch_size=None)

    return make


def batches(source, epoch):
    return [(batch.x, batch.y) for batch in as_loader(source, "cpu", None).batches(epoch)]


def test_a_table_on_disk_is_planned_before_loading(table, tmp_path):
    from datasets import load_from_disk

    table.save_to_disk(tmp_path / "table")
    rows = load_from_disk(tmp_path / "table").with_format("torch")
    assert class_labels(rows).tolist() == Y.tolist()
    assert class_labels(rows.remove_columns("label")) is None
    read = []

    def noted(items):
        read.append(len(items))
        return pair(items)

    found = []
    for train in (Loader(rows, BATCH, collate_fn=noted), Loader(TensorDataset(X, Y), BATCH)):
        trainer = Trainer(model(), train, policy=RandomSubset(0.5), epochs=3, device="cpu")
        trainer.run()
        found.append(weights(trainer.model))
    assert torch.equal(*found)
    assert sum(read) <= 3 * N // 2 + BATCH  # and a batch to check the model


def test_each_epoch_of_a_stream_has_an_order_of_its_own_whoever_asks(stream, request):
    source = stream()
    first, second = batches(source, 0), batches(source, 1)
    assert torch.cat([y for _, y in first]).bincount().tolist() == [20, 20, 20]
    assert not torch.equal(first[0][0], second[0][0])
    if not request.node.callspec.params["stream"].startswith("web"):  # which counts its passes
        again = batches(stream(), 1)  # another process, which resumes in the second epoch
        for got, expected in zip(again, second, strict=True):
            assert torch.equal(got[0], expected[0])


def test_a_gate_on_a_stream_goes_on_with_a_new_pass(stream, tmp_path, request):
    kind = request.node.callspec.params["stream"]

    def make(**options):
        made = stream()
        if kind == "webdataset":  # rows, which the trainer forms into batches
            options["batch_size"] = BATCH
        return Trainer(model(), made, policy=Gate(0.5), epochs=2, device="cpu", **options)

    whole = make()
    whole.run()
    assert whole.ledger.samples.trained < 2 * N
    broken = make(checkpoints=tmp_path / "run")
    for record in broken.steps():
        if record.step == 11:
            break
    later = make(checkpoints=tmp_path / "run", resume=True)
    assert (later.step, later.progress) == (11, broken.progress)
    assert torch.equal(weights(later.model), weights(broken.model))
    with pytest.warns(UserWarning, match="starts a new pass: some rows of this epoch may come"):
        later.run()
    assert later.step >= whole.step  # the pass is as long as usual where a length is known
    assert len(later.history.epochs) == 2


def test_a_plan_for_a_stream_is_refused(stream):
    source, policy = stream(), RandomSubset(0.5)
    refused(
        (
            lambda: Trainer(model(), source, policy=policy, epochs=1),
            "before loading, but a stream can only be read in order: use",
        ),
        (
            lambda: policy.sampler(source, epochs=1),
            "or use a policy that selects after scoring, such as Gate",
        ),
    )
