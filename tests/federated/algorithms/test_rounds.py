"""Rounds compared with the papers' formulas by hand, and special cases in which algorithms must be equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from federated import tree
from federated.algorithms import ALGORITHMS, Algorithm, Update, algorithm_from
from federated.errors import FederatedError
from federated.learner import Batch
from tests.federated.quadratic import KEEP, Quadratic, at, batches

LEARNER = Quadratic()
PARAMS = LEARNER.params
W = ("body.w", "head.b")
STILL = {"norm.mean": PARAMS["norm.mean"]}


def g(params: Any, batch: Batch) -> dict[str, Any]:
    return dict(LEARNER.gradient(params, batch).grads)


def down(params: Any, grads: Any, rate: Any) -> dict[str, Any]:
    """Statistics left out."""
    return {n: params[n] - rate * grads[n] for n in W}


def near(a: Any, b: Any, names: Any = W, tolerance: float = 2e-5) -> None:
    for name in names:
        np.testing.assert_allclose(a[name], b[name], rtol=tolerance, atol=tolerance, err_msg=name)


def work(algorithm: Algorithm, drawn: Batch, personal: Any = None, params: Any = PARAMS) -> tuple[Update, Any]:
    broadcast = algorithm.broadcast(algorithm.init(params))
    own = algorithm.enrol(broadcast) if personal is None else personal
    return algorithm.local(LEARNER, broadcast, own, drawn)


def made(name: str, **fields: Any) -> Any:
    return algorithm_from({"name": name, **fields})


def moved(update: Update) -> dict[str, Any]:
    return {n: PARAMS[n] + update.payload["params"][n] for n in update.payload["params"]}


def heavy_ball(drawn: Batch, steps: int, rate: float, momentum: float) -> dict[str, Any]:
    """v <- momentum * v + g, y <- y - rate * v."""
    y, v = PARAMS, {n: 0 * PARAMS[n] for n in W}
    for i in range(steps):
        slope = g(y | STILL, at(drawn, i))
        v = {n: momentum * v[n] + slope[n] for n in W}
        y = down(y, v, rate)
    return y


# -- by hand -----------------------------------------------------------------------------------------------------------


def test_fedavg_takes_steps_and_averages_differences() -> None:
    drawn = batches(2)
    one = down(PARAMS, g(PARAMS, at(drawn, 0)), 0.1)
    two = down(one, g(one | STILL, at(drawn, 1)), 0.1)
    algorithm = made("fedavg", rate=0.1, server_rate=0.5)
    update, _ = work(algorithm, drawn)
    near(moved(update), two)
    mean = KEEP * (1 - KEEP) * at(drawn, 0).inputs["x"].mean(0) + (1 - KEEP) * at(drawn, 1).inputs["x"].mean(0)
    near(moved(update), {"norm.mean": mean}, ["norm.mean"])
    losses = [LEARNER.gradient(PARAMS, at(drawn, 0)).loss, LEARNER.gradient(one | STILL, at(drawn, 1)).loss]
    np.testing.assert_allclose(update.loss, np.mean(losses), rtol=1e-5)
    after = algorithm.apply(algorithm.init(PARAMS), update.payload, 1.0)
    near(after["params"], {n: PARAMS[n] + 0.5 * (two[n] - PARAMS[n]) for n in W})


def test_fedprox_is_pulled_back() -> None:
    drawn = batches(2)
    one = down(PARAMS, g(PARAMS, at(drawn, 0)), 0.1)
    slope = g(one | STILL, at(drawn, 1))
    two = down(one, {n: slope[n] + 3.0 * (one[n] - PARAMS[n]) for n in W}, 0.1)
    near(moved(work(made("fedprox", rate=0.1, mu=3.0), drawn)[0]), two)


def test_scaffold_by_option_two() -> None:
    rng = np.random.default_rng(5)
    drawn = batches(2)
    c, mine = ({n: rng.standard_normal(PARAMS[n].shape).astype(np.float32) for n in PARAMS} for _ in range(2))
    algorithm = made("scaffold", rate=0.1)
    y = PARAMS
    for i in range(2):
        slope = g(y | STILL, at(drawn, i))
        y = down(y, {n: slope[n] - mine[n] + c[n] for n in W}, 0.1)
    update, kept = algorithm.local(LEARNER, {"params": PARAMS, "control": c}, {"control": mine}, drawn)
    near(moved(update), y)
    want = {n: mine[n] - c[n] + (PARAMS[n] - y[n]) / (2 * 0.1) for n in W}
    near(kept["control"], want)
    near(update.payload["control"], {n: want[n] - mine[n] for n in W})
    state = algorithm.apply({"params": PARAMS, "control": c}, update.payload, 0.25)
    near(state["control"], {n: c[n] + 0.25 * (want[n] - mine[n]) for n in W})
    assert not kept["control"]["norm.mean"].any()


SERVER = {"server_rate": 0.1, "beta1": 0.6, "beta2": 0.8, "tau": 0.01}


@pytest.mark.parametrize("name", ["fedmomentum", "fedadagrad", "fedadam", "fedyogi"])
def test_server_optimisers_over_three_rounds(name: str) -> None:
    used = {key: value for key, value in SERVER.items() if key not in made(name).idle()}
    algorithm, rng = made(name, **used), np.random.default_rng(1)
    state = algorithm.init(PARAMS)
    x = {n: PARAMS[n].astype(np.float64) for n in W}
    m, v = {n: 0 * x[n] for n in W}, {n: 0 * x[n] + 0.01**2 for n in W}
    for _ in range(3):
        d = {n: rng.standard_normal(PARAMS[n].shape).astype(np.float32) / 10 for n in W}
        payload = {"params": d, "statistics": {"norm.mean": np.float32([1, 2, 3])}}
        state = algorithm.apply(state, payload, 1.0)
        for n in W:
            m[n] = 0.6 * m[n] + (1.0 if name == "fedmomentum" else 0.4) * d[n]
            v[n] = {
                "fedmomentum": v[n],
                "fedadagrad": v[n] + d[n] ** 2,
                "fedadam": 0.8 * v[n] + 0.2 * d[n] ** 2,
                "fedyogi": v[n] - 0.2 * d[n] ** 2 * np.sign(v[n] - d[n] ** 2),
            }[name]
            x[n] += 0.1 * (m[n] if name == "fedmomentum" else m[n] / (np.sqrt(v[n]) + 0.01))
    near(state["params"], x)
    near(state["params"], {"norm.mean": [3, 6, 9]}, ["norm.mean"])


@pytest.mark.parametrize("name", ["fedavg", "fedadam", "reptile", "ditto", "fedprox", "local_only", "fedper"])
def test_momentum_of_local_steps(name: str) -> None:
    drawn, want = batches(3), heavy_ball(batches(3), 3, 0.1, 0.8)
    off = {"fedprox": {"mu": 0.0}, "ditto": {"penalty": 0.0, "tuning_rate": 0.1}, "fedper": {"own": ["head*"]}}
    algorithm = made(name, rate=0.1, momentum=0.8, **off.get(name, {}))
    update, kept = work(algorithm, drawn)
    reached = {**moved(update), **kept.get("params", {})} if name != "local_only" else kept["params"]
    near(reached, want)
    if name == "ditto":
        near(kept["params"], want)
    tuned = {"local_only": {"rate": 0.1}}.get(name, {"tuning_rate": 0.1})
    adapting = made(name, momentum=0.8, **{**off.get(name, {}), **tuned})
    broadcast = adapting.broadcast(adapting.init(PARAMS))
    near(adapting.personalise(LEARNER, broadcast, adapting.enrol(broadcast), drawn), want)


def test_momentum_leaves_scaffolds_controls_plain() -> None:
    algorithm = made("scaffold", rate=0.1, momentum=0.8)
    update, kept = work(algorithm, batches(2))
    near(moved(update), heavy_ball(batches(2), 2, 0.1, 0.8))
    first = g(PARAMS, at(batches(2), 0))
    second = g(down(PARAMS, first, 0.1) | STILL, at(batches(2), 1))
    near(kept["control"], {n: (first[n] + second[n]) / 2 for n in W})


@pytest.mark.parametrize("clip_norm", [0.0, 0.5, 1e6])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_gradients_are_clipped_and_matrices_decay(clip_norm: float, weight_decay: float) -> None:
    class Square(Quadratic):
        """Its weights are a matrix of one row."""

        def gradient(self, params: Any, batch: Batch) -> Any:
            found = super().gradient({**params, "body.w": params["body.w"][0]}, batch)
            return found._replace(grads={**found.grads, "body.w": found.grads["body.w"][None]})

    drawn = at(batches(1), 0)
    params = {**PARAMS, "body.w": PARAMS["body.w"][None]}
    slopes = {**g(PARAMS, drawn), "body.w": g(PARAMS, drawn)["body.w"][None]}
    norm = float(np.sqrt(sum((slope**2).sum() for slope in slopes.values())))
    factor = min(1.0, clip_norm / norm) if clip_norm else 1.0
    want = {name: factor * slope for name, slope in slopes.items()}
    want["body.w"] = want["body.w"] + weight_decay * params["body.w"]
    algorithm = made("fedavg", clip_norm=clip_norm, weight_decay=weight_decay)
    found = algorithm.shaped(Square()).gradient(params, drawn)
    near(found.grads, want, tolerance=1e-6)
    assert found.grads["body.w"].dtype == np.float32 and found.statistics.keys() == {"norm.mean"}
    assert (algorithm.shaped(LEARNER) is LEARNER) == (not clip_norm and not weight_decay)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_rates_of_a_schedule_are_those_of_training(name: str) -> None:
    """With tiny rates nothing is learned; a server's rate of zero changes nothing."""
    algorithm = made(name)
    state = algorithm.init(PARAMS)
    broadcast = algorithm.broadcast(state)
    drawn = batches(2 * algorithm.batches_a_step)
    if algorithm.local_rates:
        still = algorithm.with_rates(dict.fromkeys(algorithm.local_rates, 1e-9))
        update, _ = still.local(LEARNER, broadcast, still.enrol(broadcast), drawn)
        payload = update.payload.get("params", {})
        assert all(abs(payload[n]).max() < 1e-6 for n in W if n in payload)
    if algorithm.server_rates:
        still = algorithm.with_rates(dict.fromkeys(algorithm.server_rates, 0.0))
        update, _ = algorithm.local(LEARNER, broadcast, algorithm.enrol(broadcast), drawn)
        near(still.apply(state, update.payload, 1.0)["params"], PARAMS)


def transcribed(w: dict[str, Any], devices: list[Batch], q: float, rate: float, weights: list[float]) -> dict[str, Any]:
    """Algorithm 2 of the paper in double precision: the model after one round."""
    lipschitz = 1 / rate
    deltas, steps = [], []
    for drawn in devices:
        x, y = drawn.inputs["x"].astype(np.float64), drawn.labels.astype(np.float64)
        body, head = w["body.w"].astype(np.float64), w["head.b"].astype(np.float64)
        loss = np.mean([((x[i] @ body + head - y[i]) ** 2).mean() / 2 for i in range(len(x))])
        for i in range(len(x)):
            off = x[i] @ body + head - y[i]
            body, head = body - rate * x[i].T @ off / len(off), head - rate * off.mean(keepdims=True)
        far = {"body.w": lipschitz * (w["body.w"] - body), "head.b": lipschitz * (w["head.b"] - head)}
        deltas.append({name: loss**q * leaf for name, leaf in far.items()})
        norm = sum((leaf**2).sum() for leaf in far.values())
        steps.append(q * loss ** (q - 1) * norm + lipschitz * loss**q)
    whole = sum(p * step for p, step in zip(weights, steps, strict=True))
    return {n: w[n] - sum(p * delta[n] for p, delta in zip(weights, deltas, strict=True)) / whole for n in W}


@pytest.mark.parametrize("q", [0.0, 0.5, 1.0, 5.0])
@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_qfedavg_is_algorithm_two(q: float, rate: float) -> None:
    devices, weights = [batches(3, seed=seed) for seed in range(3)], [0.5, 0.3, 0.2]
    algorithm = made("qfedavg", q=q, rate=rate)
    state = algorithm.init(PARAMS)
    updates = [algorithm.local(LEARNER, algorithm.broadcast(state), {}, drawn)[0] for drawn in devices]
    after = algorithm.apply(state, tree.weighted_mean([update.payload for update in updates], weights), 1.0)["params"]
    near(after, transcribed(PARAMS, devices, q, rate, weights))
    mean = sum(p * (update.payload["statistics"]["norm.mean"]) for p, update in zip(weights, updates, strict=True))
    near(after, {"norm.mean": PARAMS["norm.mean"] + mean}, ["norm.mean"])
    assert {leaf.dtype for _, leaf in tree.leaves(updates[0].payload)} == {np.dtype(np.float32)}


def test_without_fairness_qfedavg_is_fedavg() -> None:
    drawn = batches(2)
    ours, theirs = made("qfedavg", q=0.0), made("fedavg")
    state = theirs.init(PARAMS)
    after = [algorithm.apply(state, work(algorithm, drawn)[0].payload, 1.0)["params"] for algorithm in (ours, theirs)]
    near(*after, names=(*W, "norm.mean"), tolerance=1e-6)


def test_fairness_brings_losses_closer() -> None:
    """Two devices agree, one differs: the larger q, the closer the one comes to the others."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 1, 40, 3)).astype(np.float32)
    rules = np.float32([[1, 0, 0], [1, 0, 0], [-1, 0, 0]])
    devices = [Batch({"x": x[i]}, x[i] @ rules[i]) for i in range(3)]

    def losses(q: float) -> list[float]:
        algorithm = made("qfedavg", q=q, rate=0.3)
        state = algorithm.init(PARAMS)
        for _ in range(60):
            payloads = [algorithm.local(LEARNER, algorithm.broadcast(state), {}, d)[0].payload for d in devices]
            state = algorithm.apply(state, tree.weighted_mean(payloads, [1.0] * 3), 1.0)
        return [float(LEARNER.evaluate(state["params"], at(drawn, 0)).loss) for drawn in devices]

    spreads = [max(found) - min(found) for found in map(losses, (0.0, 1.0, 5.0))]
    assert spreads[0] > 1.5 * spreads[1] > 1.5 * spreads[2]


def test_a_loss_of_nothing_divides_by_nothing() -> None:
    class Perfect(Quadratic):
        def evaluate(self, params: Any, batch: Batch) -> Any:
            return super().evaluate(params, batch)._replace(loss=np.float32(0))

    algorithm = made("qfedavg", q=5.0)
    state = algorithm.init(PARAMS)
    update, _ = algorithm.local(Perfect(), algorithm.broadcast(state), {}, batches(1))
    after = algorithm.apply(state, update.payload, 1.0)["params"]
    assert all(np.isfinite(leaf).all() for leaf in after.values())


def test_statistics_go_apart_where_servers_have_optimisers() -> None:
    update, _ = work(made("fedadam"), batches(2))
    assert update.payload["params"].keys() == set(W) and update.payload["statistics"].keys() == {"norm.mean"}


@pytest.mark.parametrize("name", ["perfedavg", "perfedavg_hf"])
def test_perfedavg_steps(name: str) -> None:
    algorithm = made(name, alpha=0.1, beta=0.2)
    drawn = batches(algorithm.batches_a_step)
    v = down(PARAMS, g(PARAMS, at(drawn, 0)), 0.1)
    slope = g(v | STILL, at(drawn, 1))
    if name == "perfedavg_hf":
        curved = LEARNER.curvature(slope, at(drawn, 2))
        slope = {n: slope[n] - 0.1 * curved[n] for n in W}
    near(moved(work(algorithm, drawn)[0]), down(PARAMS, slope, 0.2), tolerance=2e-4)


def quadratic_form(batch: Batch) -> tuple[Any, Any]:
    """H and c of the gradient H z - c at z = (w, b)."""
    z = np.concatenate([batch.inputs["x"], np.ones((len(batch.labels), 1))], 1).astype(np.float64)
    return z.T @ z / len(z), z.T @ batch.labels / len(z)


@pytest.mark.parametrize("name", ["fomaml", "maml", "meta_sgd", "meta_sgd_exact"])
@pytest.mark.parametrize("steps", [1, 3])
def test_fedmeta_sends_the_querys_gradient_at_the_common_start(name: str, steps: int) -> None:
    algorithm = made(name, rate=0.1, inner_steps=steps)
    drawn = batches(4)
    theta = np.concatenate([PARAMS[n] for n in W]).astype(np.float64)
    grads, slopes = [], []
    for i in (0, 2):
        (h, c), (hq, cq) = quadratic_form(at(drawn, i)), quadratic_form(at(drawn, i + 1))
        z, on_the_way = theta, []
        for _ in range(steps):
            on_the_way.append(h @ z - c)
            z = z - 0.1 * on_the_way[-1]
        back, slope = hq @ z - cq, 0 * z
        jacobian = np.eye(4) - 0.1 * h if algorithm.second_order else np.eye(4)
        for met in reversed(on_the_way):
            slope, back = slope - back * met, jacobian.T @ back
        grads.append(back)
        slopes.append(slope)
    update, _ = work(algorithm, drawn)
    found = update.payload
    np.testing.assert_allclose(np.concatenate([found["params"][n] for n in W]), -np.mean(grads, 0), rtol=2e-4)
    if "rates" in algorithm.learned:
        np.testing.assert_allclose(np.concatenate([found["rates"][n] for n in W]), -np.mean(slopes, 0), rtol=2e-4)
    assert ("rates" in found) == ("rates" in algorithm.learned)


def test_pfedme_alternates() -> None:
    algorithm = made("pfedme", rate=0.1, inner_steps=2, outer_rate=0.2, penalty=1.5, server_rate=2.0)
    drawn = batches(2)
    w = theta = PARAMS
    for i in range(2):
        for _ in range(2):
            slope = g(theta | STILL, at(drawn, i))
            theta = down(theta, {n: slope[n] + 1.5 * (theta[n] - w[n]) for n in W}, 0.1)
        w = {n: w[n] - 0.2 * 1.5 * (w[n] - theta[n]) for n in W}
    update, kept = work(algorithm, drawn)
    near(moved(update), w)
    near(kept["params"], theta)
    after = algorithm.apply(algorithm.init(PARAMS), update.payload, 1.0)
    near(after["params"], {n: PARAMS[n] + 2.0 * (w[n] - PARAMS[n]) for n in W})
    near(algorithm.personalise(LEARNER, {"params": PARAMS}, kept, drawn), theta)


def test_ditto_keeps_its_own_near_the_common_one() -> None:
    drawn = batches(1)
    own = {**PARAMS, "body.w": PARAMS["body.w"] + 1}
    slope = g(own, at(drawn, 0))
    want = down(own, {n: slope[n] + 2.0 * (own[n] - PARAMS[n]) for n in W}, 0.3)
    _, kept = work(made("ditto", tuning_rate=0.3, penalty=2.0), drawn, {"params": own})
    near(kept["params"], want)


def test_apfl_mixes_and_learns_how_much() -> None:
    drawn = batches(1)
    own = {**PARAMS, "body.w": PARAMS["body.w"] + 1}
    algorithm = made("apfl", rate=0.1, mixture=0.25, mixture_rate=0.01)
    share = np.float32(0.25)
    mixed = {n: 0.25 * own[n] + 0.75 * PARAMS[n] for n in W}
    slope = g(mixed | STILL, at(drawn, 0))
    update, kept = work(algorithm, drawn, {"params": own, "mixture": share})
    near(moved(update), down(PARAMS, g(PARAMS, at(drawn, 0)), 0.1))
    near(kept["params"], down(own, slope, 0.1 * 0.25))
    want = 0.25 - 0.01 * sum(((own[n] - PARAMS[n]) * slope[n]).sum() for n in W)
    np.testing.assert_allclose(kept["mixture"], want, rtol=1e-5)
    near(algorithm.start({"params": PARAMS}, {"params": own, "mixture": share}), mixed)


def test_apfls_share_stays_a_share() -> None:
    far = {**PARAMS, "body.w": PARAMS["body.w"] + 100}
    algorithm = made("apfl", mixture_rate=10.0)
    kept = [work(algorithm, batches(1), {"params": far, "mixture": np.float32(s)})[1]["mixture"] for s in (0.1, 0.9)]
    assert all(0 <= share <= 1 for share in kept)


def test_fedper_keeps_the_head() -> None:
    drawn = batches(2)
    personal = {"params": {"head.b": np.float32([7.0])}}
    start = {**PARAMS, "head.b": np.float32([7.0])}
    one = down(start, g(start, at(drawn, 0)), 0.1)
    two = down(one, g(one | STILL, at(drawn, 1)), 0.1)
    algorithm = made("fedper", rate=0.1)
    update, kept = work(algorithm, drawn, personal)
    assert update.payload["params"].keys() == {"body.w", "norm.mean"}
    near(moved(update), two, ["body.w"])
    near(kept["params"], two, ["head.b"])
    after = algorithm.apply(algorithm.init(PARAMS), update.payload, 1.0)
    near(after["params"], {"body.w": two["body.w"], "head.b": PARAMS["head.b"]})


def test_fedrep_trains_the_head_first() -> None:
    drawn = batches(3)
    params = PARAMS
    for i in range(2):
        params = {**params, "head.b": down(params, g(params, at(drawn, i)), 0.1)["head.b"]}
    params = {**params, "body.w": down(params, g(params, at(drawn, 2)), 0.1)["body.w"]}
    update, kept = work(made("fedrep", rate=0.1, head_steps=2), drawn)
    near(moved(update), params, ["body.w"])
    near(kept["params"], params, ["head.b"])


@pytest.mark.parametrize("count", [1, 2])
def test_fedrep_with_few_batches_trains_both(count: int) -> None:
    update, kept = work(made("fedrep"), batches(count))
    assert update.payload["params"]["body.w"].any() and (kept["params"]["head.b"] != PARAMS["head.b"]).all()


def test_fedbn_keeps_statistics_and_scales() -> None:
    update, kept = work(made("fedbn"), batches(2))
    assert update.payload["params"].keys() == set(W) and kept["params"].keys() == {"norm.mean"}
    assert kept["params"]["norm.mean"].any()


def test_local_parameters_must_be_some_and_not_all() -> None:
    for own in (["nothing*"], ["*"]):
        with pytest.raises(FederatedError, match=r"match some parameters and to leave some.*body\.w, head\.b"):
            made("fedper", own=own).init(PARAMS)


def test_meta_head_steps_uphill_then_ahead_then_keeps_a_head() -> None:
    algorithm = made("meta_head", rate=0.1, sharpness=0.5, inner_rate=0.2, tuning_rate=0.3)
    drawn = batches(2)
    first, second = at(drawn, 0), at(drawn, 1)
    slope = g(PARAMS, first)
    norm = np.sqrt(sum((slope[n] ** 2).sum() for n in W))
    params = down(PARAMS, g(down(PARAMS, slope, -0.5 / norm) | STILL, first), 0.1)
    ahead = down(params, g(params | STILL, first), 0.2)
    params = down(params, g(ahead | STILL, second), 0.1)
    own = {"head.b": np.float32([7.0])}
    update, kept = work(algorithm, drawn, {"params": own})
    near(moved(update), params)
    for batch in (first, second):
        head = params | own | STILL
        own = {"head.b": own["head.b"] - 0.3 * g(head, batch)["head.b"]}
    near(kept["params"], own, ["head.b"])
    after = algorithm.apply(algorithm.init(PARAMS), update.payload, 1.0)
    near(after["params"], params)
    assert algorithm.enrol(algorithm.broadcast(after)) == {"params": {"head.b": after["params"]["head.b"]}}


def test_a_zero_gradient_has_no_ascent_direction() -> None:
    still = batches(2)
    still = Batch({"x": still.inputs["x"] * 0}, still.labels * 0)
    flat = {n: v * 0 for n, v in PARAMS.items()}
    update, _ = work(made("meta_head"), still, params=flat)
    assert all((leaf == 0).all() for _, leaf in tree.leaves(update.payload))


def test_local_only_sends_nothing() -> None:
    drawn = batches(2)
    update, kept = work(made("local_only", rate=0.1), drawn)
    assert update.payload == {}
    near(kept["params"], moved(work(made("fedavg", rate=0.1), drawn)[0]), PARAMS)
    assert made("local_only").apply({"params": PARAMS}, {}, 1.0) == {"params": PARAMS}


# -- one becomes another -----------------------------------------------------------------------------------------------

DRAWN = batches(4)


def test_fedprox_without_penalty_is_fedavg() -> None:
    a, b = (work(algorithm, DRAWN)[0] for algorithm in (made("fedprox", mu=0.0), made("fedavg")))
    near(a.payload["params"], b.payload["params"], PARAMS, 0)


def test_scaffold_at_first_is_fedavg() -> None:
    near(work(made("scaffold"), DRAWN)[0].payload["params"], work(made("fedavg"), DRAWN)[0].payload["params"], PARAMS)


def test_scaffold_with_one_device_stays_fedavg() -> None:
    """The only device's control variate equals the server's, so nothing is corrected."""
    algorithm, plain = made("scaffold"), made("fedavg")
    state, other = algorithm.init(PARAMS), plain.init(PARAMS)
    own = algorithm.enrol(algorithm.broadcast(state))
    for seed in range(3):
        drawn = batches(2, seed=seed)
        update, own = algorithm.local(LEARNER, algorithm.broadcast(state), own, drawn)
        state = algorithm.apply(state, update.payload, 1.0)
        other = plain.apply(other, plain.local(LEARNER, other, {}, drawn)[0].payload, 1.0)
    near(state["params"], other["params"], PARAMS)


def test_perfedavg_without_a_step_to_adapt_is_fedavg_on_the_second_batches() -> None:
    second = Batch({"x": DRAWN.inputs["x"][1::2]}, DRAWN.labels[1::2])
    a = work(made("perfedavg", alpha=0.0, beta=0.05), DRAWN)[0].payload["params"]
    b = work(made("fedavg", rate=0.05), second)[0].payload["params"]
    near(a, b)


def test_fedmeta_without_inner_rate_sends_minus_the_gradient() -> None:
    for name in ("fomaml", "maml"):
        update, _ = work(made(name, rate=0.0), batches(2))
        near(update.payload["params"], tree.scale(g(PARAMS, at(batches(2), 1)), -1))


def test_ditto_without_penalty_learns_alone() -> None:
    _, alone = work(made("local_only", rate=0.05), DRAWN)
    _, ditto = work(made("ditto", tuning_rate=0.05, penalty=0.0), DRAWN)
    near(ditto["params"], alone["params"], PARAMS)


def test_apfl_all_personal_or_all_common() -> None:
    """Share 1 predicts with what it learned alone, share 0 with what FedAvg would."""
    whole, kept = work(made("apfl", mixture=1.0, mixture_rate=0.0), DRAWN)
    near(kept["params"], work(made("local_only"), DRAWN)[1]["params"])
    none = made("apfl", mixture=0.0, mixture_rate=0.0)
    near(none.start({"params": PARAMS}, none.enrol({"params": PARAMS})), PARAMS, PARAMS)
    near(whole.payload["params"], work(made("fedavg"), DRAWN)[0].payload["params"])


def test_reptile_is_fedavg_with_a_shorter_step() -> None:
    reptile, plain = made("reptile", server_rate=1.0), made("fedavg")
    near(work(reptile, DRAWN)[0].payload["params"], work(plain, DRAWN)[0].payload["params"], PARAMS, 0)
    assert reptile.uniform and not plain.uniform


def test_adaptive_servers_ignore_how_long_the_direction_is() -> None:
    for scale in (1.0, 100.0):
        state = made("fedadam", beta1=0.0, beta2=0.0, tau=1e-6, server_rate=0.1).init(PARAMS)
        payload = {"params": {n: np.full_like(PARAMS[n], scale) for n in W}}
        after = made("fedadam", beta1=0.0, beta2=0.0, tau=1e-6, server_rate=0.1).apply(state, payload, 1.0)
        near(after["params"], {n: PARAMS[n] + 0.1 for n in W}, tolerance=1e-4)


# -- out of a configuration --------------------------------------------------------------------------------------------

WRONG = [
    ({}, r"expected name to be one of fedavg, fedprox.*got None"),
    ({"name": "fedsgd"}, r"one of fedavg.*got 'fedsgd'"),
    ({"name": ["fedavg"]}, r"got \['fedavg'\]"),
    ({"name": "fedavg", "mu": 1.0}, r"algorithm fedavg: mu: no such key; expected one of .*rate"),
    ({"name": "fedavg", "rate": "fast"}, r"fedavg: rate: expected a number, got 'fast'"),
    ({"name": "fedavg", "rate": True}, r"expected a number, got True"),
    ({"name": "fedavg", "rate": float("nan")}, r"expected rate of at least 0, got nan"),
    ({"name": "fedavg", "rate": -1}, r"expected rate of at least 0, got -1"),
    ({"name": "fedavg", "uniform": 1}, r"uniform: expected true or false, got 1"),
    ({"name": "pfedme", "inner_steps": 0}, r"expected inner_steps of 1 to 10000, got 0"),
    ({"name": "pfedme", "inner_steps": 10**9}, r"expected inner_steps of 1 to 10000, got 1000000000"),
    ({"name": "fedavg", "rate": 10**400}, r"rate: expected a number, got 1000"),
    ({"name": "pfedme", "inner_steps": 1.5}, r"inner_steps: expected a whole number, got 1.5"),
    ({"name": "fedper", "own": "head"}, r"own: expected a list of texts, got 'head'"),
    ({"name": "fedadam", "server": "lamb"}, r"expected server to be one of sgd, .*got 'lamb'"),
    ({"name": "fedadam", "beta2": 1.0}, r"expected beta2 below 1, got 1.0"),
    ({"name": "apfl", "mixture": 1.5}, r"mixture within \[0, 1\], got 1.5"),
    ({"name": "fedavg", "momentum": 1.0}, r"fedavg: expected momentum below 1, got 1.0"),
    ({"name": "apfl", "momentum": 0.9}, r"apfl: momentum has no effect on the mixture; omit it"),
    ({"name": "meta_head", "momentum": 0.9}, r"meta_head: momentum has no effect"),
    ({"name": "perfedavg", "momentum": 0.9}, r"momentum: no such key"),
    ({"name": "fedavg", "clip_norm": -1.0}, r"expected clip_norm of at least 0"),
    ({"name": "qfedavg", "rate": 0.0}, r"qfedavg: expected a rate above 0"),
    ({"name": "qfedavg", "q": -1.0}, r"qfedavg: expected q of at least 0"),
    ({"name": "maml", "clip_norm": 1.0}, r"maml: clip_norm has no effect on exact second-order gradients; omit it"),
    ({"name": "maml", "inner_steps": 101}, r"maml: expected inner_steps of 1 to 100, got 101"),
    ({"name": "meta_sgd_exact", "inner_steps": 101}, r"meta_sgd_exact: expected inner_steps of 1 to 100"),
    ({"name": "fedmomentum", "tau": 0.1}, r"fedmomentum: tau has no effect with server 'momentum'; omit it"),
    ({"name": "fomaml", "server": "sgd", "beta1": 0.5}, r"beta1 has no effect with server 'sgd'"),
    ({"name": "local_only", "uniform": True}, r"local_only: uniform has no effect without a mean"),
]


@pytest.mark.parametrize(("config", "match"), WRONG)
def test_a_configuration_that_does_not_fit_is_refused(config: dict[str, Any], match: str) -> None:
    with pytest.raises(FederatedError, match=match):
        algorithm_from(config)


def test_configurations_are_read() -> None:
    algorithm = made("meta_head", rate=1, own=["fc.*"], uniform=False)
    assert algorithm.rate == 1.0 and isinstance(algorithm.rate, float)
    assert algorithm.own == ("fc.*",) and algorithm.uniform is False
