"""Classification as a bandit: which row, what it pays, how it is prepared, and where tables come from."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pyarrow import csv

from nbl.cli import main
from nbl.envs import Classification, features, tables
from nbl.types import NblError

R, N, K = 3, 40, 3
DATA = Path(os.environ.get("NBL_DATA_DIR") or Path(__file__).parents[2].parent / "shared" / "data")
FROM_HUB = tables.from_hub  # the tests replace it
QUICK = ["replicas=2", "logger=none", "callbacks.progress=null"]


def columns(rows=N):
    """Two numbers, two letters and a class that follows the first number."""
    rng = np.random.default_rng(0)
    kind = np.arange(rows) % K
    return {
        "size": kind * 10.0 + rng.uniform(size=rows),
        "count": rng.integers(0, 9, rows),
        "colour": rng.choice(["red", "blue", "?"], rows).tolist(),
        "shape": rng.choice(["round", "flat"], rows).tolist(),
        "label": [("low", "mid", "top")[k] for k in kind],
    }


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """No data of the machine's, and no network."""
    monkeypatch.delenv(tables.FOLDER, raising=False)
    monkeypatch.setattr(tables, "from_hub", lambda options: pytest.fail("the network was asked"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make(data=None, **more):
    return Classification(data=columns() if data is None else data, **{"replicas": R, "seed": 7, **more})


def row_of(env, r, t):
    return int(env.order[r, t - 1])


def test_arm_k_has_the_row_in_block_k_and_zeros_around_it():
    """The disjoint encoding, written by hand."""
    env = make()
    assert (env.arms, env.features, env.dim, env.rows, env.fixed_arms) == (K, 4, 12, N, False)
    for t in (1, 2, N):
        x, row = env.contexts(t), env.row(t)
        assert x.shape == (R, K, K * 4) and x.dtype == torch.float64
        for k in range(K):
            expected = torch.zeros(R, K * 4, dtype=torch.float64)
            expected[:, 4 * k : 4 * k + 4] = row
            assert torch.equal(x[:, k], expected)


def test_the_right_class_pays_one_and_a_mistake_costs_one():
    """Means are 0 and 1, regret counts mistakes, and without noise the reward is the mean."""
    env, label = make(), [("low", "mid", "top").index(c) for c in columns()["label"]]
    for t in range(1, N + 1):
        env.contexts(t)
        right = torch.tensor([label[row_of(env, r, t)] for r in range(R)])
        for shift in range(K):
            feedback = env.pull((right + shift) % K)
            assert (feedback.reward == float(shift == 0)).all() and (feedback.regret == float(shift > 0)).all()
            assert (feedback.optimal == (shift == 0)).all()


def test_noise_is_added_where_it_is_asked_for():
    env = make(noise=0.5)
    env.contexts(1)
    feedback = env.pull(torch.zeros(R, dtype=torch.int64))
    assert not torch.isin(feedback.reward, torch.tensor([0.0, 1.0])).any() and (feedback.regret % 1 == 0).all()


def test_every_row_is_played_once_in_an_order_of_the_seeds_own():
    env = make()
    assert all(sorted(order.tolist()) == list(range(N)) for order in env.order)
    assert len({tuple(order.tolist()) for order in env.order}) == R


@pytest.mark.parametrize("more", [{}, {"fit": "online", "scale": "standard"}, {"fit": "online", "pca": 2}])
def test_a_replica_equals_a_run_of_its_own(more):
    """Same order, contexts and rewards as with that seed alone; later passes too."""
    env = make(repeat=True, noise=0.1, **more)
    for r in range(R):
        single = make(repeat=True, noise=0.1, replicas=1, seed=7 + r, **more)
        for t in (1, 2, 17, N, N + 3, 3 * N):
            torch.testing.assert_close(env.contexts(t)[r], single.contexts(t)[0], rtol=1e-9, atol=1e-9)
            played = env.pull(torch.ones(R, dtype=torch.int64)).reward[r]
            torch.testing.assert_close(played, single.pull(torch.ones(1, dtype=torch.int64)).reward[0])


@pytest.mark.parametrize("fit", ["all", "online"])
@pytest.mark.parametrize("scale", ["minmax", "standard"])
def test_asking_twice_gives_the_same(fit, scale):
    """A round is a function of the seed and its number, whatever was asked before."""
    env = make(fit=fit, scale=scale, pca=2)
    first = [env.contexts(t).clone() for t in range(1, N + 1)]
    for t in (N, 3, 1, 20):
        assert torch.equal(env.contexts(t), first[t - 1])


def test_too_few_rows_is_said_at_once_or_in_that_round():
    with pytest.raises(NblError, match=rf"horizon={N + 1}, but .* has {N} rows.*repeat"):
        make(horizon=N + 1)
    env = make(horizon=N)
    with pytest.raises(NblError, match=f"round {N + 1}, but .* has {N} rows"):
        env.contexts(N + 1)


def test_repeat_plays_all_rows_again_in_another_order():
    env = make(repeat=True, horizon=10 * N, unit=False)
    passes = [[tuple(env.row(t)[0].tolist()) for t in range(p * N + 1, (p + 1) * N + 1)] for p in range(3)]
    assert sorted(passes[0]) == sorted(passes[1]) == sorted(passes[2])
    assert passes[0] != passes[1] != passes[2] != passes[0]


def test_ordinal_codes_are_places_in_the_sorted_list():
    """? < blue < red, flat < round; numbers stay."""
    env, data = make(unit=False), columns()
    for r in range(R):
        i = row_of(env, r, 1)
        expected = [data["size"][i], data["count"][i]]
        expected += [["?", "blue", "red"].index(data["colour"][i]), ["flat", "round"].index(data["shape"][i])]
        torch.testing.assert_close(env.row(1)[r], torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=0)


def test_onehot_has_a_column_a_value():
    env, data = make(unit=False, encode="onehot"), columns()
    assert env.features == 2 + 3 + 2
    colour = torch.stack([env.table[i, 2:5] for i in range(N)])
    assert colour.argmax(1).tolist() == [["?", "blue", "red"].index(c) for c in data["colour"]]
    assert (env.table[:, 2:5].sum(1) == 1).all() and (env.table[:, 5:].sum(1) == 1).all()


def test_random_codes_are_one_number_a_value_and_the_same_for_every_seed():
    env, other = make(unit=False, encode="random"), make(unit=False, encode="random", seed=99)
    assert torch.equal(env.table, other.table)
    assert len(env.table[:, 2].unique()) == 3 and env.table[:, 2:].abs().max() <= 1
    assert not torch.isin(env.table[:, 2].unique(), env.table[:, 3].unique()).any()


def test_scales_do_what_they_say():
    low_high = make(scale="minmax", unit=False).table
    assert torch.equal(low_high.amin(0), -torch.ones(4)) and torch.equal(low_high.amax(0), torch.ones(4))
    standard = make(scale="standard", unit=False).table
    torch.testing.assert_close(standard.mean(0), torch.zeros(4), atol=1e-6, rtol=0)
    torch.testing.assert_close(standard.std(0, correction=0), torch.ones(4))
    rows = make(scale="rows", unit=False).table
    torch.testing.assert_close(rows.amin(1), -torch.ones(N))
    torch.testing.assert_close(rows.amax(1), torch.ones(N))


def test_a_constant_column_scales_to_zero():
    """It says nothing; it must not say NaN."""
    for scale in ("minmax", "standard"):
        for fit in ("all", "online"):
            env = make({**columns(), "size": np.full(N, 5.0)}, scale=scale, fit=fit, unit=False)
            assert all((env.row(t)[:, 0] == 0).all() for t in (1, 2, N))


def test_rows_have_norm_one_unless_they_are_zero():
    data = {"a": np.array([3.0, 0.0, 1.0, 2.0]), "b": np.array([4.0, 0.0, 1.0, 0.0]), "label": [0, 1, 0, 1]}
    env = make(data)
    norms = torch.stack([env.row(t)[0].norm() for t in range(1, 5)])
    expected = [0.0 if row_of(env, 0, t) == 1 else 1.0 for t in range(1, 5)]
    torch.testing.assert_close(norms, torch.tensor(expected, dtype=torch.float64))


def test_pca_keeps_what_varies_most():
    """Against the singular values of the centred table."""
    env = make(pca=2, unit=False, scale="standard")
    table = make(unit=False, scale="standard").table.double()
    values = torch.linalg.svdvals(table - table.mean(0))
    assert env.features == 2
    torch.testing.assert_close(env.table.double().norm(dim=0), values[:2], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(env.table.mean(0), torch.zeros(2), atol=1e-5, rtol=0)


@pytest.mark.parametrize("more", [{"scale": "minmax"}, {"scale": "standard"}, {"scale": "minmax", "pca": 2}])
def test_online_does_not_know_the_future(more):
    """Rows that come later change nothing: round t is the same in a table whose later rows are other ones."""
    env = make(fit="online", replicas=1, **more)
    t, data = 20, columns()
    later = env.order[0, t:].tolist()
    data["size"] = data["size"].copy()
    data["size"][later] = 1e6 * np.arange(1, N - t + 1)
    other, looking = make(data, fit="online", replicas=1, **more), make(data, fit="all", replicas=1, **more)
    for s in range(1, t + 1):
        assert torch.equal(env.contexts(s), other.contexts(s))
    assert not torch.allclose(looking.contexts(t), other.contexts(t))


@pytest.mark.parametrize("scale", ["minmax", "standard"])
def test_online_is_the_fit_of_the_rows_met_so_far(scale):
    """Round t equals the last row of a table of the rows met, scaled as a whole; so round N equals fit=all."""
    env = make(fit="online", scale=scale, unit=False, replicas=1)
    raw = make(unit=False, replicas=1).table.double().numpy()
    for t in (2, 9, N):
        met = raw[env.order[0, :t].long().numpy()]
        named = {str(i): met[:, i] for i in range(4)}
        expected = features.matrix(named, "ordinal", scale, 1)[-1]
        torch.testing.assert_close(env.row(t)[0].float(), expected, rtol=1e-4, atol=1e-5)


def test_online_pca_spans_what_pca_of_the_rows_met_spans():
    """At a round that is a power of two, the projections onto the two spans agree."""
    env = make(fit="online", pca=2, unit=False, replicas=1)
    env.contexts(32)
    basis = env._running.basis[0]
    expected = features.principal(env.table[env.order[0, :32].long()], 2)[1]
    torch.testing.assert_close(basis @ basis.mT, expected @ expected.mT)
    torch.testing.assert_close(basis.mT @ basis, torch.eye(2, dtype=torch.float64))


def test_images_are_flattened_and_pooled(tmp_path):
    """Means over 2 x 2 squares, bytes to [0, 1]; `labels` is found."""
    images = np.arange(6 * 16, dtype=np.uint8).reshape(6, 4, 4)
    np.savez(tmp_path / "pics.npz", images=images, labels=np.array([0, 1, 2, 0, 1, 2], dtype=np.uint8))
    plain, pooled = (Classification("pics", tmp_path, unit=False, pool=pool) for pool in (1, 2))
    assert (plain.features, pooled.features, plain.arms) == (16, 4, 3)
    torch.testing.assert_close(plain.table, torch.tensor(images.reshape(6, 16) / 255, dtype=torch.float32))
    corner = images[0, :2, 2:].mean() / 255
    torch.testing.assert_close(pooled.table[0, 1].item(), corner, rtol=1e-6, atol=0)
    with pytest.raises(NblError, match="pool=3"):
        Classification("pics", tmp_path, pool=3)


def write(folder, kind, name="things"):
    folder.mkdir(exist_ok=True)
    table = pa.table({key: pa.array(value) for key, value in columns().items()})
    if kind == "parquet":
        pq.write_table(table, folder / f"{name}.parquet")
    elif kind == "csv":
        csv.write_csv(table, folder / f"{name}.csv")
    elif kind == "tsv":
        csv.write_csv(table, folder / f"{name}.tsv", csv.WriteOptions(delimiter="\t"))
    elif kind == "npz":
        np.savez(folder / f"{name}.npz", **{key: np.asarray(value) for key, value in columns().items()})
    else:
        import datasets

        datasets.Dataset(table).save_to_disk(str(folder / name))
    return folder


@pytest.mark.parametrize("kind", ["parquet", "csv", "tsv", "npz", "saved"])
def test_a_table_is_the_same_from_every_kind_of_file(kind, tmp_path):
    """And the same as in memory."""
    env, memory = Classification("things", write(tmp_path / "d", kind)), Classification(data=columns())
    torch.testing.assert_close(env.table, memory.table)
    assert torch.equal(env.labels, memory.labels) and env.classes == memory.classes == ["low", "mid", "top"]


def test_frames_and_datasets_are_tables():
    import datasets
    import pandas as pd

    memory, frame = Classification(data=columns()), pd.DataFrame(columns())
    halves = {"train": datasets.Dataset.from_pandas(frame[:10]), "test": datasets.Dataset.from_pandas(frame[10:])}
    for data, drop in ((frame, ()), (datasets.DatasetDict(halves).remove_columns([]), ())):
        env = Classification(data=data, drop=drop)
        torch.testing.assert_close(env.table, memory.table)
        assert torch.equal(env.labels, memory.labels)


def test_images_of_a_dataset_become_pixels():
    """MNIST on the Hub is a column of pictures."""
    import datasets

    pixels = np.arange(4 * 16, dtype=np.uint8).reshape(4, 4, 4)
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    data = datasets.Dataset.from_dict({"image": list(pixels), "label": [0, 1, 0, 1]}, features=kinds)
    env = Classification(data=data, unit=False)
    torch.testing.assert_close(env.table, torch.tensor(pixels.reshape(4, 16) / 255, dtype=torch.float32))


def test_path_then_folder_then_hub(tmp_path, monkeypatch):
    """Each is asked only when the one before is not there, and the Hub gets its arguments."""
    asked = []
    monkeypatch.setattr(tables, "from_hub", lambda options: asked.append(options) or tables.from_object(columns()))
    hub = {"path": "someone/things", "revision": "x", "target": "label"}
    assert Classification("things", hub=hub, target="class").source == "Hub someone/things"
    assert asked == [{"path": "someone/things", "revision": "x"}]
    monkeypatch.setenv(tables.FOLDER, str(write(tmp_path / "folder", "csv")))
    assert Classification("things", hub=hub).source.endswith("folder/things.csv")
    given = write(tmp_path / "given", "parquet")
    assert Classification("things", given, hub=hub).source.endswith("given/things.parquet")
    assert Classification("other", given / "things.parquet").rows == N
    assert len(asked) == 1


def test_the_hub_is_asked_for_all_splits_and_the_class_may_have_another_name(monkeypatch):
    """`datasets.load_dataset` gets what `hub` says; a wrong class is answered with the option that names it."""
    import datasets

    asked = []

    def answer(**options):
        asked.append(options)
        data = {("kind" if key == "label" else key): value for key, value in columns().items()}
        return datasets.DatasetDict({name: datasets.Dataset.from_dict(data) for name in ("train", "test")})

    monkeypatch.setattr(tables, "from_hub", FROM_HUB)
    monkeypatch.setattr(datasets, "load_dataset", answer)
    env = Classification("things", hub={"path": "someone/things", "revision": "main", "target": "kind"})
    assert (env.rows, env.arms, asked) == (2 * N, K, [{"path": "someone/things", "revision": "main"}])
    with pytest.raises(NblError, match=r"Hub someone/things: which column.*size.*kind.*\+env\.hub\.target="):
        Classification("things", hub={"path": "someone/things"})


def test_the_error_names_every_place_and_how_to_get_the_data(monkeypatch, tmp_path):
    def unreachable(options):
        raise ConnectionError("Couldn't reach it")

    monkeypatch.setattr(tables, "from_hub", unreachable)
    monkeypatch.setenv(tables.FOLDER, str(tmp_path))
    with pytest.raises(NblError) as caught:
        Classification("things", hub="someone/things", origin="UCI Things")
    for words in (str(tmp_path), "things.parquet", "someone/things", "Couldn't reach it", "env.path=", "UCI Things"):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"target": "clas"}, "'clas' is none of size, count, colour, shape, label"),
        ({"target": "size"}, "is it a class"),
        ({"drop": ["colr"]}, "colr"),
        ({"drop": ["size", "count", "colour", "shape"]}, "no column beside"),
        ({"encode": "hot"}, "ordinal, onehot, random"),
        ({"scale": "max"}, "none, minmax, standard, rows"),
        ({"fit": "later"}, "all, online"),
        ({"missing": "ok"}, "error, drop, zero"),
        ({"pca": 0}, "pca=0"),
        ({"pca": 5}, "40 rows of 4 features"),
        ({"pool": 0}, "pool=0"),
        ({"noise": -1.0}, "noise=-1"),
        ({"replicas": 0}, "replicas=0"),
        ({"data": [1, 2]}, "list"),
        ({"data": {**columns(), "size": np.ones(3)}}, "length"),
        ({"data": {**columns(), "label": ["a"] * N}}, "1 class"),
        ({"data": {**columns(), "size": np.full(N, np.inf)}}, "40 infinite"),
        ({"data": {"a": np.arange(4), "label": np.array([0, 1, np.nan, 0])}}, "1 rows have no class"),
    ],
)
def test_what_cannot_be_is_named(change, words):
    with pytest.raises(NblError, match=words):
        Classification(**{"data": columns(), **change})


def test_a_wide_onehot_is_refused_before_it_is_made():
    data = {"name": [str(i) for i in range(20_000)], "label": np.arange(20_000) % 2}
    with pytest.raises(NblError, match=r"20000 columns.*drop=\[name\]"):
        Classification(data=data, encode="onehot")


def test_a_checkpoint_has_no_table_and_knows_it_again():
    env = make()
    env.contexts(5)
    state = env.state_dict()
    assert not any(isinstance(value, torch.Tensor) and value.numel() > 1 for value in state.values())
    again = make()
    again.load_state_dict(state)
    assert again.t == 5
    with pytest.raises(NblError, match="40 rows"):
        make(columns(30)).load_state_dict(state)


def test_the_table_is_shared_and_follows_a_move():
    """`meta` stands in for a GPU."""
    env = make(replicas=50)
    assert env.table.shape == (N, 4) and env.table.dtype == torch.float32
    env.to("meta")
    assert all(value.is_meta for value in env.buffers())


@pytest.mark.parametrize("more", [[], ["env.fit=online", "env.scale=minmax", "env.pca=2"]])
def test_a_table_of_ones_own_from_the_command_line_and_resumed(more, tmp_path):
    """A run stopped half way and resumed plays the same rounds."""
    write(tmp_path, "csv", "my")
    line = ["recipe=neural_ts", "env=table", "env.path=my.csv", "env.target=label", "horizon=30", *QUICK, *more]
    assert main([*line, "out=whole", "checkpoint.every=15"]) == 0
    whole = pq.read_table("whole/rounds.parquet")
    Path("whole/rounds.parquet").unlink()
    half = next(file for file in Path("whole/checkpoints").glob("*.ckpt") if "15" in file.name)
    assert main([f"resume={half}"]) == 0
    assert whole.num_rows == 60 and whole.equals(pq.read_table("whole/rounds.parquet"))


def test_it_is_learned():
    """The class follows the first column: LinUCB makes far fewer mistakes than guessing (2/3 of the rounds)."""
    pq.write_table(pa.table({k: pa.array(v) for k, v in columns(150).items()}), "my.parquet")
    line = ["env=table", "env.path=my.parquet", "env.encode=onehot", "env.scale=standard", "horizon=150", *QUICK]
    regret = {}
    for recipe in ("lin_ucb", "uniform"):
        assert main([f"recipe={recipe}", *line, f"out={recipe}"]) == 0
        regret[recipe] = json.loads(Path(recipe, "summary.json").read_text())["regret"]["mean"]
    assert regret["lin_ucb"] < 0.5 * regret["uniform"]


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "rows", "arms", "wide"),
    [
        ("adult", 48_842, 2, 14),
        ("covertype", 581_012, 7, 54),
        ("magic", 19_020, 2, 10),
        ("mushroom", 8_124, 2, 22),
        ("shuttle", 58_000, 7, 9),
        ("mnist", 70_000, 10, 784),
        ("banknote", 1_372, 2, 4),
        ("phoneme", 5_404, 2, 5),
        ("letter", 20_000, 26, 16),
        ("german_credit", 1_000, 2, 20),
    ],
)
def test_the_known_data_sets(name, rows, arms, wide, monkeypatch):
    """As many rows, classes and features as their README says, and ten rounds are played from the recipe."""
    if not any(DATA.glob(f"{name}.*")):
        pytest.skip(f"{name} is not in {DATA}; say NBL_DATA_DIR=FOLDER")
    env = Classification(name, DATA)
    assert (env.rows, env.arms, env.features, len(env.classes)) == (rows, arms, wide, arms)
    norms = torch.stack([env.contexts(t).norm(dim=-1) for t in range(1, 4)])
    torch.testing.assert_close(norms, torch.ones_like(norms))
    monkeypatch.setenv("NBL_DATA_DIR", str(DATA))
    assert main(["recipe=uniform", f"env={name}", "horizon=10", "out=a", *QUICK]) == 0
