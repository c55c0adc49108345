"""`scout preflight` on a good set-up and on broken ones: each is caught by the check that bears its name."""

from __future__ import annotations

import json
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scout_cli.main import main as scout
from scout_data.rows import make_row, write_rows
from scout_train import host_memory
from scout_train.preflight.run import NAMES

Preflight = Callable[..., int]


@pytest.fixture
def argv(model_dir: Path, rows_file: Path, tool_server: Any, tmp_path: Path) -> Callable[..., list[str]]:
    """Options of a good run, changed where told; a list repeats an option."""

    def make(*more: str, **changes: Any) -> list[str]:
        options: dict[str, Any] = {
            "cluster": "cpu",
            "model": model_dir,
            "train": rows_file,
            "tools": tool_server.url,
            "out": tmp_path / "run",
            "steps": 2,
        } | {k.replace("_", "-"): v for k, v in changes.items()}
        found = ["preflight", *more]
        for key, value in options.items():
            for item in value if isinstance(value, list) else [value]:
                found += [f"--{key}", str(item)]
        return found

    return make


@pytest.fixture
def preflight(argv: Callable[..., list[str]]) -> Preflight:
    return lambda *more, **changes: scout(argv(*more, **changes))


def report(tmp_path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((tmp_path / "run" / "preflight.json").read_text())
    assert loaded["schema"] == "scout.preflight/1"
    return loaded


def refusals(tmp_path: Path) -> list[str]:
    return [f["name"] for f in report(tmp_path)["findings"] if f["verdict"] == "refuse"]


def test_a_good_set_up_passes(
    preflight: Preflight, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert preflight() == 0
    out = capsys.readouterr().out
    found = report(tmp_path)
    names = [f["name"] for f in found["findings"]]
    not_on_a_cpu = {"card-memory", "topology", "learning-rate", "micro-batch", "weight-sync"}
    not_alone = {"nodes"}
    assert set(names) == set(NAMES) - not_on_a_cpu - not_alone
    not_ok = {f["name"] for f in found["findings"] if f["verdict"] != "ok"}
    assert "readiness" in not_ok  # not judged: a warning
    assert not_ok <= {"readiness", "capacity"}, out  # this little server may be slow on a busy machine
    assert found["verdict"] == "warn" and all(name in out for name in names)
    assert "observation tokens masked" in out and "searched" in out


def caught(status: int, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], says: str) -> None:
    told = capsys.readouterr()
    assert status == 2, told.out + told.err
    assert name in refusals(tmp_path)
    assert told.err.startswith(f"scout preflight: preflight {name}: ") and told.err.count("\n") == 1
    assert says in told.err
    assert any(line.startswith(f"refuse  {name}") for line in told.out.splitlines())


def rows_of(path: Path, questions: list[tuple[str, str, str]]) -> Path:
    write_rows(path, [make_row(q, [a], "search_r1", s, "train", i) for i, (q, a, s) in enumerate(questions)])
    return path


def test_gold_that_cannot_be_won(preflight: Preflight, tmp_path: Path, capsys: Any) -> None:
    rows = rows_of(tmp_path / "r.parquet", [(f"is it {i}?", "the", "toy") for i in range(8)])
    caught(
        preflight("--only", "gold", train=rows), "gold", tmp_path, capsys, "8 of 8 questions cannot be won"
    )


def test_two_blocks_that_nothing_shuffles(preflight: Preflight, tmp_path: Path, capsys: Any) -> None:
    blocks = [(f"is it {i}?", f"t {i}", "nq" if i < 300 else "hotpotqa") for i in range(600)]
    rows = rows_of(tmp_path / "r.parquet", blocks)
    status = preflight("--only", "mixed", train=rows, steps=20, set="data.shuffle=false")
    caught(status, "mixed", tmp_path, capsys, "hotpotqa 0.0%")
    assert preflight("--only", "mixed", train=rows, steps=20) == 0  # the recipe's own: verl shuffles


def test_a_file_that_an_audit_refused(preflight: Preflight, tmp_path: Path, capsys: Any) -> None:
    rows = rows_of(
        tmp_path / "r.parquet",
        [(f"is it {i}?", f"t {i}", "nq" if i < 300 else "hotpotqa") for i in range(600)],
    )
    assert scout(["data", "audit", str(rows)]) == 2
    capsys.readouterr()
    caught(preflight("--only", "mixed", train=rows), "mixed", tmp_path, capsys, "scout data mix")


def test_rows_that_share_an_id(preflight: Preflight, tmp_path: Path, capsys: Any) -> None:
    import msgspec

    rows = [make_row(f"is it {i}?", [f"t {i}"], "search_r1", "toy", "train", i) for i in range(9)]
    rows[3] = msgspec.structs.replace(rows[3], id=rows[0].id)
    write_rows(tmp_path / "r.parquet", rows)
    status = preflight("--only", "groups", train=tmp_path / "r.parquet")
    caught(status, "groups", tmp_path, capsys, "stands on 2 rows")


def test_a_batch_that_does_not_divide_among_the_cards(
    preflight: Preflight, tmp_path: Path, capsys: Any
) -> None:
    status = preflight("--only", "groups", set=["trainer.n_gpus_per_node=3"])
    caught(status, "groups", tmp_path, capsys, "multiple of the 3 cards")


def test_prompts_that_do_not_fit(preflight: Preflight, tmp_path: Path, capsys: Any) -> None:
    status = preflight("--only", "prompts", set="data.max_prompt_length=16")
    caught(status, "prompts", tmp_path, capsys, "raise data.max_prompt_length (now 16)")


def test_tags_that_an_engine_would_drop(
    preflight: Preflight, model_dir: Path, tmp_path: Path, capsys: Any
) -> None:
    from transformers import AutoTokenizer

    model = tmp_path / "model"
    shutil.copytree(model_dir, model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_special_tokens({"extra_special_tokens": ["</search>"]})
    tokenizer.save_pretrained(model)
    status = preflight("--only", "tokens", model=model)
    caught(status, "tokens", tmp_path, capsys, "'</search>' is a special token")


def test_a_chat_template_that_loses_the_question(
    preflight: Preflight, model_dir: Path, tmp_path: Path, capsys: Any
) -> None:
    model = tmp_path / "model"
    shutil.copytree(model_dir, model)
    (model / "chat_template.jinja").write_text("{{ messages[0]['content'][:9] }}\nassistant\n")
    status = preflight("--only", "tokens", model=model)
    caught(status, "tokens", tmp_path, capsys, "the chat template leaves out")


def test_a_tool_that_is_broken_behind_a_healthy_server(
    preflight: Preflight, tool_server: Any, tmp_path: Path, capsys: Any
) -> None:
    tool_server.broken = True
    status = preflight("--only", "tool-call")
    caught(status, "tool-call", tmp_path, capsys, "the tool call failed (http_503)")


def test_server_and_recipe_of_two_dialects(preflight: Preflight, tmp_path: Path, capsys: Any) -> None:
    """The little server answers in Search-R1's tags; the recipe speaks ReAct's."""
    status = preflight("--only", "tool-call", set="scout.episode.dialect=react")
    caught(status, "tool-call", tmp_path, capsys, "no <observation>")


def test_no_server(preflight: Preflight, tmp_path: Path, capsys: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        caught(preflight("--only", "tools", tools=url), "tools", tmp_path, capsys, "make serve-tools")


def test_a_server_that_only_one_of_eight_nodes_reaches(
    preflight: Preflight, tmp_path: Path, capsys: Any
) -> None:
    status = preflight("--only", "tools", set="trainer.nnodes=8")
    caught(status, "tools", tmp_path, capsys, "is this node only, the run has 8")


def test_a_dead_proxy_matters_where_something_goes_through_it(
    preflight: Preflight, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        user = ":".join(("me", "secret"))  # in two pieces: it is no credential of anybody
        monkeypatch.setenv("http_proxy", f"http://{user}@127.0.0.1:{port}")
        monkeypatch.setenv("no_proxy", "")
        monkeypatch.setenv("WANDB_MODE", "online")
        assert preflight("--only", "proxies", "--only", "tools", "--only", "capacity") == 0
        out = capsys.readouterr().out
        assert "it answers nothing; nothing in this run goes through it" in out and "secret" not in out
        status = preflight("--only", "proxies", "--with", "wandb")
        caught(status, "proxies", tmp_path, capsys, "Weights & Biases would go through it")


def test_a_server_too_slow_for_what_is_planned(
    preflight: Preflight, tool_server: Any, tmp_path: Path, capsys: Any
) -> None:
    tool_server.hang_s = 2.0  # eight calls at once: four a second
    assert preflight("--only", "capacity") == 0
    assert "warn    capacity" in capsys.readouterr().out  # a laptop may be busy
    status = preflight("--only", "capacity", cluster="8xa100")
    caught(status, "capacity", tmp_path, capsys, "planned")


def test_a_container_with_little_memory(
    preflight: Preflight, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit of 2 GiB on a group above this process, as a container's runtime writes it."""
    group = tmp_path / "cgroup"
    group.mkdir()
    for name, value in (
        ("memory.max", 2 * 2**30),
        ("memory.current", 2**30),
        ("memory.stat", "inactive_file 0"),
    ):
        (group / name).write_text(f"{value}\n")
    own = tmp_path / "self"
    own.write_text("0::/some/where/else\n")
    monkeypatch.setattr(host_memory, "_CGROUP", group)
    monkeypatch.setattr(host_memory, "_OWN", own)
    caught(preflight("--only", "memory"), "memory", tmp_path, capsys, "1.0 GiB free")


def test_a_full_disk(preflight: Preflight, tmp_path: Path, capsys: Any) -> None:
    status = preflight("--only", "disk", set="scout.run.keep_checkpoints=100000000000")
    caught(status, "disk", tmp_path, capsys, "needed for checkpoints")


def test_too_few_open_files(argv: Callable[..., list[str]], tmp_path: Path) -> None:
    """In a process of its own, whose limit is 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    code = (
        "import resource, sys; from scout_cli.main import main\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (256, {hard}))\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    assert soft == resource.RLIM_INFINITY or soft > 256
    command = [sys.executable, "-c", code, *argv("--only", "files")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "ulimit -n 65536" in done.stderr
    assert refusals(tmp_path) == ["files"]


@pytest.mark.parametrize(
    ("content", "status", "says"),
    [
        ('{"schema": "scout.readiness/1", "verdict": "ready"}', 0, "ready, by"),
        ('{"schema": "scout.readiness/1", "verdict": "more_sft"}', 2, "too weak for RL"),
        ('{"schema": "scout.readiness/1", "verdict": "too_far"}', 0, "too far"),
        ('{"schema": "scout.readiness/2", "verdict": "ready"}', 2, "schema scout.readiness/2"),
        ("{", 2, "is no report"),
        ('{"schema": "scout.readiness/1", "verdict": "ready", "policy": "hf:/other"}', 0, "judged /other"),
    ],
)
def test_the_verdict_on_the_warm_up(
    preflight: Preflight, tmp_path: Path, capsys: Any, content: str, status: int, says: str
) -> None:
    (tmp_path / "readiness.json").write_text(content)
    assert preflight("--only", "readiness", readiness=tmp_path / "readiness.json") == status
    told = capsys.readouterr()
    assert says in told.out
    assert (refusals(tmp_path) == ["readiness"]) == (status == 2)


def test_an_agent_loop_that_masks_nothing(preflight: Preflight, tmp_path: Path, capsys: Any) -> None:
    status = preflight(
        "--only", "mask", set="actor_rollout_ref.rollout.agent.default_agent_loop=single_turn_agent"
    )
    caught(status, "mask", tmp_path, capsys, "only scout_search masks")


def test_a_model_that_writes_nothing_useful(
    preflight: Preflight, model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Random weights: nothing to strengthen. Only a warning: some start from a base model on purpose."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model = tmp_path / "model"
    shutil.copytree(model_dir, model)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model)).save_pretrained(model)
    assert preflight("--only", "rollout", model=model) == 0
    assert "warm the model up first" in capsys.readouterr().out


def test_checks_are_skipped_by_name(
    preflight: Preflight, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = preflight("--only", "mask", "--only", "epochs", "--skip-preflight", "mask")
    assert status == 0
    found = report(tmp_path)
    assert [f["name"] for f in found["findings"]] == ["epochs"] and "mask" in found["skipped"]
    assert preflight("--skip-preflight", "no-such-check") == 2
    assert "choose among gold, mixed" in capsys.readouterr().err


def test_several_refusals_are_one_line_and_a_table(preflight: Preflight, tmp_path: Path, capsys: Any) -> None:
    settings = [
        "scout.run.keep_checkpoints=100000000000",
        "actor_rollout_ref.rollout.agent.default_agent_loop=x",
    ]
    assert preflight("--only", "mask", "--only", "disk", "--only", "epochs", set=settings) == 2
    told = capsys.readouterr()
    assert "(and 1 more: mask)" in told.err and told.err.count("\n") == 1
    assert refusals(tmp_path) == ["disk", "mask"]


def test_train_runs_it_and_starts_nothing_where_it_refuses(
    argv: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rows_of(tmp_path / "r.parquet", [(f"is it {i}?", "the", "toy") for i in range(8)])
    words = argv(train=rows)[1:]
    others = [n for n in NAMES if n not in ("gold", "mask")]
    assert scout(["train", *words, "--skip-preflight", *others]) == 2
    assert "scout train: preflight gold: " in capsys.readouterr().err
    assert refusals(tmp_path) == ["gold"]
    assert not (tmp_path / "run" / "config.yaml").exists()
