"""Agents: episodes and replay memory in real environments, resumed runs, and environments that break the rules."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import MissingDependency, Unsupported, UsageError
from deep5.core.seeds import derive_seed
from deep5.training.reinforcement.episodes import returns

ENVIRONMENT = d5.datasets.environment("CartPole-v1").train


class Broken(gymnasium.Env[Any, Any]):
    """A pole that breaks a rule: `how` names it."""

    def __init__(self, how: str = "") -> None:
        self.how, self.steps = how, 0
        bounds = {"low": -1.0, "high": 1.0}
        self.observation_space: Any = gymnasium.spaces.Box(shape=(4,), **bounds)  # type: ignore[arg-type]
        self.action_space: Any = gymnasium.spaces.Discrete(2)
        if how == "continuous actions":
            self.action_space = gymnasium.spaces.Box(shape=(1,), **bounds)  # type: ignore[arg-type]
        if how == "words":
            self.observation_space = gymnasium.spaces.Text(5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        if self.how == "reset raises":
            raise OSError("no such pole")
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.how == "step raises":
            raise RuntimeError("the pole broke")
        seen = np.full(4, self.steps / 100, np.float32)
        if self.how == "nan" and self.steps == 3:
            seen[1] = np.nan
        if self.how == "noise of its own":
            seen[:] = np.random.default_rng().random()
        if self.how == "shape":
            seen = np.zeros(3, np.float32)
        reward = float("inf") if self.how == "reward" else 1.0
        return seen, reward, self.how == "at once" or self.steps == 7, False, {}


@pytest.fixture(autouse=True, scope="module")
def registered() -> Iterator[None]:
    for name, limit in (("Broken-v0", 50), ("Endless-v0", None)):
        gymnasium.register(id=name, entry_point=Broken, max_episode_steps=limit, disable_env_checker=True)  # type: ignore[arg-type]
    yield
    for name in ("Broken-v0", "Endless-v0"):
        del gymnasium.registry[name]


def broken(how: str) -> Any:
    return d5.datasets.environment("Broken-v0", arguments={"how": how}).train


def policy(framework: str = "reference", seed: int = 0) -> Any:
    return d5.framework(framework).executor(d5.networks.policy_network(hidden=(16,), seed=seed))


def q_values(framework: str = "reference", seed: int = 0) -> Any:
    return d5.framework(framework).executor(d5.networks.q_network(hidden=(16,), seed=seed))


def by_hand(state: dict[str, np.ndarray], x: np.ndarray, activation: Any) -> np.ndarray:
    """Both networks with one hidden layer, in float64."""
    first, second = (
        (state[f"fc{layer}.weight"].astype(np.float64), state[f"fc{layer}.bias"].astype(np.float64)) for layer in (1, 2)
    )
    hidden = activation(x.astype(np.float64) @ first[0].T + first[1])
    result: np.ndarray = hidden @ second[0].T + second[1]
    return result


# Episodes


def test_returns_by_hand() -> None:
    assert returns([1.0, 0.0, 2.0], 0.5).tolist() == [1.5, 1.0, 2.0]
    assert returns([3.0], 0.9).tolist() == [3.0]
    assert returns([1.0] * 4, 1.0).tolist() == [4.0, 3.0, 2.0, 1.0]


def test_a_batch_is_episodes_of_the_environment() -> None:
    executor = policy()
    sampler = d5.EpisodeSampler(ENVIRONMENT, 120, seed=3, batches=1, side_by_side=2, discount=0.9)
    sampler.bind(executor)
    ((ids, batch),) = sampler.batches(epoch=0)
    assert ids is None
    # Played again by Gymnasium itself, from the seeds and the actions of the batch.
    step, episode, gained = 0, 0, []
    made: Any = gymnasium.make("CartPole-v1")
    while step < 120:
        seen, _ = made.reset(seed=derive_seed(3, "episode", 0, 0, episode) % (1 << 31))
        ended, rewards = False, []
        while not ended and step < 120:
            np.testing.assert_array_equal(batch["input"][step], seen)
            seen, reward, ended, _, _ = made.step(int(batch["action"][step]))
            rewards.append(float(reward))
            step += 1
        complete = ended
        gained.append(returns(rewards, 0.9))
        episode += 1
    assert episode > 2  # more than one group
    expected = np.concatenate(gained[:-1] if not complete else gained)
    # The last episode may continue beyond the batch, so its returns are not known here: up to it, targets are a linear
    # function of the returns, the same for all.
    targets = batch["target"][: len(expected)].astype(np.float64)
    slope, offset = np.polyfit(expected, targets, 1)
    assert slope > 0
    np.testing.assert_allclose(targets, slope * expected + offset, atol=1e-6)  # rounded to float32
    assert abs(batch["target"].mean()) < 1e-6
    assert batch["target"].std() == pytest.approx(1.0, abs=1e-6)


def test_actions_are_drawn_with_the_probabilities_of_the_policy() -> None:
    executor = policy(seed=1)
    sampler = d5.EpisodeSampler(ENVIRONMENT, 4000, seed=0, batches=1)
    sampler.bind(executor)
    ((_, batch),) = sampler.batches(epoch=0)
    scores = by_hand(executor.state_dict(), batch["input"], np.tanh)
    weights = np.exp(scores)
    right = weights[:, 1] / weights.sum(axis=1)
    difference = batch["action"].mean() - right.mean()
    # Five standard deviations of the mean of so many draws.
    assert abs(difference) < 5 * np.sqrt((right * (1 - right)).mean() / 4000)
    other = d5.EpisodeSampler(ENVIRONMENT, 4000, seed=1, batches=1)
    other.bind(executor)
    ((_, second),) = other.batches(epoch=0)
    assert not np.array_equal(batch["action"], second["action"])


def test_the_loss_of_a_policy_by_hand() -> None:
    executor = policy()
    draw = np.random.default_rng(0)
    batch = {
        "input": draw.normal(size=(6, 4)).astype(np.float32),
        "action": draw.integers(0, 2, 6),
        "target": draw.normal(size=6).astype(np.float32),
    }
    scores = by_hand(executor.state_dict(), batch["input"], np.tanh)
    logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    expected = -(batch["target"] * logs[np.arange(6), batch["action"]]).mean()
    # float32 against float64, a few operations.
    assert float(executor.inference(batch)["loss"]) == pytest.approx(expected, abs=1e-6)


# Replay memory


@pytest.mark.parametrize("framework", ["reference", "pytorch"])
def test_targets_of_double_q_learning_by_hand(framework: str) -> None:
    executor = q_values(framework)
    sampler = d5.ReplaySampler(ENVIRONMENT, 40, seed=2, batches=4, warm_up=60, target_rate=0.25, discount=0.9)
    trainer = d5.Trainer(executor, d5.SGD(lr=0.05), sampler)
    states: list[dict[str, np.ndarray]] = [executor.state_dict()]

    class States(d5.Event):
        def after_step(self, trainer: Any, info: Any, outputs: Any, begin_ns: int, end_ns: int) -> None:
            states.append(executor.state_dict())

        def before_step(self, trainer: Any, info: Any) -> None:
            assert info.batch_size == 40

    batches: list[dict[str, np.ndarray]] = []
    drawn = sampler._batch

    def kept(epoch: int, number: int) -> dict[str, np.ndarray]:
        batches.append(drawn(epoch, number))
        return batches[-1]

    sampler._batch = kept  # type: ignore[method-assign]
    trainer.train(1, [States()])
    memory = sampler._memory
    target = {name: value.astype(np.float64) for name, value in states[0].items()}
    for number, batch in enumerate(batches):
        online = states[number]
        target = {name: held + 0.25 * (online[name] - held) for name, held in target.items()}
        for row in range(40):
            same = (memory["input"] == batch["input"][row]).all(axis=1) & (memory["action"] == batch["action"][row])
            (place,) = np.flatnonzero(same)
            after = memory["next"][place][None]
            best = by_hand(online, after, lambda x: np.maximum(x, 0)).argmax()
            value = by_hand(target, after, lambda x: np.maximum(x, 0))[0, best]
            expected = 1.0 + (0.0 if memory["ended"][place] else 0.9 * value)
            # The network runs in float32.
            assert batch["target"][row] == pytest.approx(expected, abs=1e-5)
    assert memory["ended"][: sampler._taken].any()


@pytest.mark.parametrize(("capacity", "limit"), [(400, None), (37, None), (400, 6)])
def test_targets_with_a_lookahead_by_hand(capacity: int, limit: int | None) -> None:
    """Three rewards and the value after them; at an end, and at the newest step, those that are there."""
    environment = d5.datasets.environment("CartPole-v1", step_limit=limit).train
    executor = q_values()
    sampler = d5.ReplaySampler(
        environment, 400, seed=1, batches=1, capacity=capacity, warm_up=30, update_every=70, discount=0.9, lookahead=3
    )
    sampler.bind(executor)
    steps: list[tuple[np.ndarray, int, np.ndarray, bool, bool]] = []
    act = environment.step

    def recorded(instance: Any, action: int) -> tuple[np.ndarray, float, bool, bool]:
        after, _, ended, truncated = act(instance, action)
        reward = float(len(steps) + 1)  # different for each step
        steps.append((sampler._seen, action, after, ended, ended or truncated))
        return after, reward, ended, truncated

    environment.step = recorded  # type: ignore[method-assign]
    ((_, batch),) = sampler.batches(epoch=0)
    assert len(steps) == 100
    oldest = max(0, 100 - capacity)
    state, relu, found = executor.state_dict(), lambda x: np.maximum(x, 0), set()
    for row in range(400):
        same = [
            number
            for number in range(oldest, 100)
            if np.array_equal(steps[number][0], batch["input"][row]) and steps[number][1] == batch["action"][row]
        ]
        (first,) = same
        target, factor = 0.0, 1.0
        for number in range(first, min(first + 3, 100)):
            target, factor = target + factor * (number + 1), factor * 0.9
            _, _, after, ended, last = steps[number]
            if last:
                break
        if not ended:
            # The target network is still equal to the network.
            target += factor * by_hand(state, after[None], relu).max()
        # The network runs in float32, and rewards are at most 100.
        assert batch["target"][row] == pytest.approx(target, abs=1e-4, rel=1e-6)
        found.add((ended, last, number - first))
    assert {(False, False, 2), (False, False, 0)} <= found
    assert any(last and ended != (limit is not None) for ended, last, _ in found)


def test_the_memory_holds_the_newest_steps() -> None:
    sampler = d5.ReplaySampler(ENVIRONMENT, 8, seed=0, batches=30, warm_up=10, capacity=20, update_every=2)
    sampler.bind(q_values())
    for _ in sampler.batches(epoch=0):
        pass
    state = sampler.state_dict()
    assert state["taken"] == 10 + 30 * 2
    assert {name: len(values) for name, values in state["memory"].items()} == dict.fromkeys(sampler._memory, 20)


def test_exploration_falls_to_its_end() -> None:
    # With probability 1 uniformly drawn, then never: the network always prefers one action.
    executor = q_values()
    state = executor.state_dict()
    executor.load_state_dict({**state, "fc2.weight": 0 * state["fc2.weight"], "fc2.bias": np.float32([1, 0])})
    sampler = d5.ReplaySampler(ENVIRONMENT, 4, batches=200, warm_up=1, epsilon=(1.0, 0.0), epsilon_steps=100)
    sampler.bind(executor)
    for _ in sampler.batches(epoch=0):
        pass
    actions = sampler._memory["action"][1:201]
    assert actions[100:].sum() == 0
    # Half of those drawn, whose share falls from all to none: a quarter, within five standard deviations.
    assert abs(actions[:100].mean() - 0.25) < 5 * np.sqrt(0.25 * 0.75 / 100)


def test_the_loss_of_q_learning_by_hand() -> None:
    executor = q_values()
    draw = np.random.default_rng(0)
    batch = {
        "input": draw.normal(size=(20, 4)).astype(np.float32),
        "action": draw.integers(0, 2, 20),
        "target": (3 * draw.normal(size=20)).astype(np.float32),
    }
    values = by_hand(executor.state_dict(), batch["input"], lambda x: np.maximum(x, 0))
    difference = np.abs(values[np.arange(20), batch["action"]] - batch["target"])
    assert (difference < 1).any()
    assert (difference > 1).any()
    expected = np.where(difference <= 1, difference**2 / 2, difference - 0.5).mean()
    assert float(executor.inference(batch)["loss"]) == pytest.approx(expected, rel=1e-5)  # float32


def test_values_with_tanh_and_a_scale_by_hand() -> None:
    network = d5.networks.q_network(hidden=(16,), activation="Tanh", scale=(1, 0.5, 10, 2), seed=3)
    executor = d5.framework("reference").executor(network)
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    batch = {"input": x, "action": np.zeros(5, np.int64), "target": np.zeros(5, np.float32)}
    expected = by_hand(executor.state_dict(), x * np.float32([1, 0.5, 10, 2]), np.tanh)
    # float32 against float64, a few operations on numbers of size 10.
    np.testing.assert_allclose(executor.inference(batch)["action_values"], expected, rtol=1e-5, atol=1e-5)
    assert "scale" not in network.trained_specs


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"activation": "Sigmoid"}, "q_network with activation 'Sigmoid'; allowed: 'Relu', 'Tanh'"),
        ({"scale": (1, 2)}, r"q_network with scale=\(1, 2\); allowed: a finite number for each of 4 features"),
        ({"scale": (1, 2, 3, float("nan"))}, "allowed: a finite number for each of 4 features"),
        ({"scale": 2.0}, r"scale=2.0; allowed: a finite number"),
    ],
)
def test_networks_that_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        d5.networks.q_network(**given)


# Resume


def _samplers() -> dict[str, Any]:
    return {
        "episodes": (policy, lambda: d5.EpisodeSampler(ENVIRONMENT, 60, seed=5, batches=4)),
        "replay": (
            q_values,
            lambda: d5.ReplaySampler(
                ENVIRONMENT, 16, seed=5, batches=10, warm_up=30, capacity=45, target_rate=0.1, lookahead=4
            ),
        ),
    }


@pytest.mark.parametrize("kind", ["episodes", "replay"])
@pytest.mark.parametrize("framework", ["reference", "pytorch", "onnxruntime"])
@pytest.mark.parametrize("after", [3, 7, 10])
def test_an_interrupted_agent_goes_on_bit_identically(kind: str, framework: str, after: int, tmp_path: Any) -> None:
    from deep5.training.checkpoint_file import read_checkpoint, write_checkpoint

    make, sampler = _samplers()[kind]

    def trainer() -> d5.Trainer:
        return d5.Trainer(make(framework), d5.Adam(0.01), sampler(), seed=5)

    class Save(d5.Event):
        def after_all(self, trainer: Any) -> None:
            if trainer.step == after:
                write_checkpoint(tmp_path / "state.safetensors", trainer.state_dict(), {})
                raise d5.StopTraining("interrupted")

    whole, first, second = trainer(), trainer(), trainer()
    whole.train(3)
    first.train(3, [Save()])
    second.load_state_dict(read_checkpoint(tmp_path / "state.safetensors")[0])
    second.train(3 - second.epoch)
    assert second.step == whole.step
    for name, value in whole.executor.state_dict().items():
        np.testing.assert_array_equal(second.executor.state_dict()[name], value)
    for name, value in whole.train_sampler.state_dict().get("memory", {}).items():  # type: ignore[attr-defined]
        np.testing.assert_array_equal(second.train_sampler.state_dict()["memory"][name], value)  # type: ignore[attr-defined]


def test_an_environment_that_does_not_repeat_its_episodes_cannot_resume() -> None:
    def sampler() -> d5.ReplaySampler:
        return d5.ReplaySampler(broken("noise of its own"), 8, batches=9, warm_up=10)

    first = sampler()
    first.bind(q_values())
    batches = first.batches(epoch=0)
    next(batches)
    second = sampler()
    second.bind(q_values())
    with pytest.raises(UsageError, match="does not repeat an episode from its seed and actions; allowed"):
        second.load_state_dict(first.state_dict())


# The metric


def test_mean_return_is_of_greedy_episodes() -> None:
    executor = policy()
    trainer = d5.Trainer(executor, d5.SGD(lr=1e-3), d5.EpisodeSampler(ENVIRONMENT, 50, batches=1), seed=4)
    observer = d5.MeanReturn(episodes=3).observer()
    trainer.train(1, [observer])
    state, found = executor.state_dict(), []
    made: Any = gymnasium.make("CartPole-v1")
    for number in range(3):
        seen, _ = made.reset(seed=derive_seed(4, "test episode", number) % (1 << 31))
        total, ended = 0.0, False
        while not ended:
            seen, reward, terminated, truncated, _ = made.step(int(by_hand(state, seen[None], np.tanh).argmax()))
            total, ended = total + float(reward), terminated or truncated
        found.append(total)
    assert observer.value() == np.mean(found)
    assert str(observer.files()["returns.csv"]).splitlines()[1:] == [f"{n},{value!r}" for n, value in enumerate(found)]


def test_mean_return_needs_an_agent() -> None:
    data = d5.datasets.synthetic(shape=(4,), classes=3, train=12, test=6)
    executor = d5.framework("reference").executor(d5.networks.mlp(features=4, hidden=8, classes=3))
    trainer = d5.Trainer(executor, d5.SGD(), d5.OrderedSampler(data.train, 4))
    with pytest.raises(UsageError, match="allowed: the samplers 'episodes' and 'replay'"):
        trainer.train(1, [d5.MeanReturn().observer()])


# What is refused


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("continuous actions", "has actions of .*; allowed: a finite set"),
        ("words", "has observations of .*; allowed: arrays of numbers"),
    ],
)
def test_spaces_that_no_network_fits(how: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        broken(how)


@pytest.mark.parametrize("kind", ["episodes", "replay"])
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("at once", "ended at its first step in each of [0-9]+ episodes; allowed: episodes of several steps"),
        ("step raises", "failed in a step: RuntimeError: the pole broke"),
        ("reset raises", "failed at the beginning of an episode: .*no such pole"),
        ("nan", "gave the observation .*nan.*; allowed: finite numbers"),
        ("shape", "gave the observation .*; allowed: finite numbers of shape"),
        ("reward", "gave the reward inf; allowed: a finite number"),
    ],
)
def test_an_environment_that_breaks_a_rule(kind: str, how: str, message: str) -> None:
    executor = policy() if kind == "episodes" else q_values()
    made: Any = d5.EpisodeSampler if kind == "episodes" else d5.ReplaySampler
    sampler = made(broken(how), 8, batches=2)
    sampler.bind(executor)
    with pytest.raises(UsageError, match=message):
        list(sampler.batches(epoch=0))


def test_a_name_that_is_not_registered() -> None:
    with pytest.raises(UsageError, match="'CartPole-v9' cannot be made: "):
        d5.datasets.environment("CartPole-v9")
    with pytest.raises(UsageError, match="got the name 3; allowed: a name"):
        d5.datasets.environment(3)  # type: ignore[arg-type]


def test_episodes_need_a_limit() -> None:
    with pytest.raises(UsageError, match="have no limit; remedy: step_limit=500, say"):
        d5.datasets.environment("Endless-v0")
    assert d5.datasets.environment("Endless-v0", step_limit=30).train.step_limit == 30


def test_without_gymnasium_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(MissingDependency, match=r"pip install 'deep5\[reinforcement\]'"):
        d5.datasets.environment()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch_size": 0}, "batch_size=0; allowed: an integer of at least 1"),
        ({"batches": True}, "batches=True; allowed"),
        ({"discount": 0}, "discount=0; allowed: a number above 0 and at most 1"),
        ({"warm_up": 0}, "warm_up=0; allowed"),
        ({"lookahead": 0}, "lookahead=0; allowed: an integer of at least 1"),
        ({"capacity": 10}, "capacity=10 and warm_up=1000; allowed"),
        ({"epsilon": (1, 2)}, r"epsilon=\(1, 2\); allowed: two numbers from 0 to 1"),
        ({"target_rate": 1.5}, "target_rate=1.5; allowed: a number above 0 and at most 1"),
    ],
)
def test_arguments_out_of_their_range(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        d5.ReplaySampler(ENVIRONMENT, **{"batch_size": 8, **given})


def test_a_network_of_other_actions_or_without_scores() -> None:
    other = d5.framework("reference").executor(d5.networks.policy_network(actions=3))
    sampler = d5.EpisodeSampler(ENVIRONMENT, 8)
    with pytest.raises(UsageError, match="has 2 actions; remedy: model_kwargs"):
        sampler.bind(other)
    with pytest.raises(UsageError, match="allowed: an output action_logits"):
        sampler.bind(q_values())
    with pytest.raises(UsageError, match="it plays with a network, and has none; remedy"):
        sampler.batches(epoch=0)


def test_a_data_set_is_no_environment() -> None:
    data = d5.datasets.synthetic(shape=(4,), classes=3, train=12, test=6)
    with pytest.raises(UsageError, match="got a ArrayDataset as an environment; allowed"):
        d5.EpisodeSampler(data.train, 8)


def test_native_code_has_no_target_network() -> None:
    class Own(d5.GraphExecutor):
        def inference(self, inputs: Any, *, training: bool = False, info: Any = None) -> Any: ...

        def inference_and_backprop(self, inputs: Any, **options: Any) -> Any: ...

    own = type("Executor", (), {"settings": lambda self: {}, "network": None})()
    with pytest.raises(Unsupported, match="needs a second executor of the network"):
        d5.ReplaySampler(ENVIRONMENT, 8).bind(own)
