"""`scout explain`: complete against a plain difference of two configurations, and every key has a reader."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from scout_protocol.errors import UserError
from scout_train import compose as recipes
from scout_train import explain, readers
from scout_train.compose import Choice, parse_setting

CHOICES = [
    Choice(algo, size, cluster)
    for algo in recipes.names("algo")
    for size, cluster in (("tiny", "cpu"), ("14b", "8xa100"), ("72b", "64x910b"))
] + [Choice("grpo", "14b", "8xa100", placement="disaggregated", options=("kl", "step_penalty"))]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_the_lines_are_the_whole_difference(choice: Choice) -> None:
    """verl's defaults with the shown lines applied, and nothing else, are the composed configuration."""
    from omegaconf import OmegaConf, open_dict

    lines, _ = explain.explain(choice, [])
    built, upstream, composed = recipes.base_config(), recipes.base_config(), recipes.compose(choice)
    for line in lines:
        before = OmegaConf.to_container(upstream)
        for part in line.key.split("."):
            before = before.get(part) if isinstance(before, dict) else None
        assert line.reason and (line.upstream is explain.OURS or line.upstream == before != line.value), line
        OmegaConf.update(built, line.key, line.value, force_add=True)
    for config in (built, composed):
        with open_dict(config):  # what scout.sampler says, for verl to hand on
            config.trainer.v1.sampler.sampler_kwargs = {}
    assert OmegaConf.to_container(built) == OmegaConf.to_container(composed)


def every_key() -> list[tuple[str, str]]:
    found = []
    for path in sorted(recipes.recipes_dir().rglob("*.yaml")):
        if path.name == f"{recipes.OPTIONS}.yaml":
            continue
        found += [
            (path.stem, leaf) for k, v in recipes.read_overlay(path).items() for leaf in explain._leaves(k, v)
        ]
    for word, option in recipes.read_options().items():
        found += [(word, leaf) for k, v in option.keys.items() for leaf in explain._leaves(k, v)]
    return found


def test_every_key_of_every_overlay_has_a_reader_in_verl() -> None:
    sources = readers.Sources.of("verl")
    assert sources is not None
    lost = {
        (overlay, key)
        for overlay, key in every_key()
        if readers.unread("verl", key) or sources.reader(key) is None
    }
    assert not lost


@pytest.mark.parametrize(
    "key", ["actor_rollout_ref.actor.grad_clip", "actor_rollout_ref.actor.fsdp_config.dtype"]
)
def test_the_search_finds_no_reader_where_there_is_none(key: str) -> None:
    sources = readers.Sources.of("verl")
    assert sources is not None and (sources.reader(key) is None or readers.unread("verl", key))
    assert sources.reader("algorithm.filter_groups.no_such_key") is None
    assert sources.reader("no_such_section.enable") is None


@pytest.mark.parametrize("key", readers.UNREAD["verl"])
def test_a_key_that_verl_accepts_and_never_reads_is_refused(key: str) -> None:
    from omegaconf import OmegaConf

    assert recipes._has(recipes.base_config(), key), "verl no longer knows this key"
    with pytest.raises(UserError, match="never reads it"):
        recipes.compose(Choice(), [(key, 1)])
    assert OmegaConf  # the configuration is composed by it


def test_grad_clip_is_dead_and_clip_grad_is_not() -> None:
    """By verl's own dataclass: the FSDP engine clips with what the optimiser's section says."""
    import inspect

    from verl.workers.engine.fsdp import transformer_impl

    source = inspect.getsource(transformer_impl)
    assert "optimizer_config.clip_grad" in source and "grad_clip" not in source


def test_reasons_are_the_overlays_comments() -> None:
    found = explain.reasons(recipes.recipes_dir() / "algo" / "dapo.yaml")
    assert found["actor_rollout_ref.actor.clip_ratio_high"] == "sec. 3.1"
    assert found["algorithm.filter_groups.enable"].startswith("eq. 11")


def test_reasons_of_quotes_blocks_and_silent_lines(tmp_path: Any) -> None:
    overlay = tmp_path / "x.yaml"
    overlay.write_text(
        '# A sentence, eq. 3 in it. And more.\na.b: "has # no comment"\n'
        "# Why c.\nc.d: 1\ne.f: {g: 1, h: '#'}   # both\ni.j: 2\n"
    )
    assert explain.reasons(overlay) == {
        "a.b": "A sentence, eq. 3 in it",
        "c.d": "Why c.",
        "e.f": "both",
        "i.j": "A sentence, eq. 3 in it",
    }


def test_what_was_set_is_said_to_be_yours(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--algo", "dapo", "--cluster", "cpu", "--with", "clip_03", "--set", "data.seed=7", "--readers"]
    assert explain.main(argv) == 0
    out = capsys.readouterr().out
    assert "data.seed = 7" in out and "as you asked" in out
    assert "clip_ratio_high = 0.3  (verl: 0.2)" in out and "core_algos.py" in out
    assert "filter_groups.metric = acc  (verl: reward)  exact match" in out


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--algo", "nope"], "choose one of"),
        (["--set", "data.nope=1"], "no reader knows this key"),
        (["--set", "actor_rollout_ref.actor.grad_clip=2"], "optim.clip_grad"),
        (["--with", "kl", "no_kl"], "choose one"),
    ],
)
def test_a_wrong_question_is_one_line(argv: list[str], says: str) -> None:
    with pytest.raises(UserError) as error:
        explain.main([*argv, "--cluster", "cpu"])
    assert says in str(error.value) and "\n" not in str(error.value)


def test_settings_with_parts_are_explained_part_by_part() -> None:
    lines, _ = explain.explain(
        Choice(), [parse_setting("algorithm.filter_groups={enable: true, metric: f1}")]
    )
    assert {"algorithm.filter_groups.enable", "algorithm.filter_groups.metric"} <= {
        line.key for line in lines
    }


def test_explain_and_plan_import_neither_torch_nor_verl() -> None:
    code = (
        "import sys; from scout_train import explain; from scout_train.plan import cli\n"
        "explain.main(['--algo', 'dapo', '--cluster', 'cpu'])\n"
        "cli.main(['memory', '--size', '14b', '--cluster', '8xa100'])\n"
        "print(sorted({'torch', 'ray', 'verl', 'transformers', 'pyarrow'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("algo", recipes.names("algo"))
def test_every_key_has_a_reader_in_verl_tool(algo: str) -> None:
    """Translated into its words; a key that nothing there reads is refused by `explain` itself."""
    from scout_train.verl_tool import paths

    try:
        paths.checkout()
    except UserError as error:
        pytest.skip(str(error))
    lines, _ = explain.explain(Choice(algo, engine="verl_tool"), [])
    clip = next(k for k in recipes.read_overlay(recipes.recipes_dir() / "size" / "tiny.yaml") if "clip" in k)
    assert clip.endswith("optim.clip_grad")  # there it is actor.grad_clip that its actor reads
    assert all(line.reason and line.reader for line in lines)
