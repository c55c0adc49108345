"""A hand-made miniature world, and a tool server (the real one, in a process of its own)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # importmode=importlib leaves it out

from sft_processes import SCOUT, tool_server

from scout_protocol.observation import Document, render
from scout_protocol.records import RLRow, SFTRow, SFTTurn
from scout_protocol.turn import Action
from scout_sft.plan import choose_stops, plan, turn_text

PEOPLE = [
    "Mara Velton",
    "Ivo Arkwell",
    "Lena Brandt",
    "Orin Corvin",
    "Nadia Grell",
    "José Ōta",
    "李 Wen",
    "Tara Oakes",
]
TOWNS = ["Silver Falls", "Old Harbor", "Stone Bridge", "Green Hollow"]
RIVERS = ["Amber Eel", "Deep Wolf", "Cold Swan", "Misty Brook"]


@dataclass(frozen=True)
class Mini:
    """Documents by title, and rows of one and two hops."""

    documents: dict[str, Document]
    rows: list[RLRow]


def _row(index: int, question: str, answer: str, steps: list[dict[str, str]]) -> RLRow:
    return RLRow(
        data_source="mini",
        prompt=[{"role": "user", "content": f"Use <search></search>. Question: {question}"}],
        ability="fact-reasoning",
        reward_model={"ground_truth": {"target": [answer]}, "style": "rule"},
        extra_info={"index": index, "split": "train", "oracle": steps},
        id=f"mini-{index}",
        question=question,
        golden_answers=[answer],
    )


def make_mini() -> Mini:
    """Eight people in four towns on four rivers: 8 one-hop and 8 two-hop questions."""
    documents: dict[str, Document] = {}
    rows: list[RLRow] = []
    for i, (town, river) in enumerate(zip(TOWNS, RIVERS, strict=True)):
        documents[town] = Document(f"t{i}", town, f"{town} is a town on the river {river}.")
    for i, person in enumerate(PEOPLE):
        town, river = TOWNS[i % 4], RIVERS[i % 4]
        documents[person] = Document(f"p{i}", person, f"{person} was born in {town}.")
        first = {
            "think": f"First look up {person}.",
            "query": person,
            "result": town,
            "conclude": f"The birthplace is {town}.",
        }
        second = {
            "think": f"The birthplace is {town}. Next look up {town}.",
            "query": town,
            "result": river,
            "conclude": f"The river is {river}.",
        }
        rows.append(_row(2 * i, f"Where was {person} born?", town, [first]))
        rows.append(_row(2 * i + 1, f"Which river is at the birthplace of {person}?", river, [first, second]))
    return Mini(documents, rows)


def make_demos(mini: Mini, dialect: Any, early: float = 0.5) -> list[SFTRow]:
    """Demonstrations without any server: each search finds its page and one other."""
    stops = choose_stops(mini.rows, early, 0)
    other = mini.documents["Silver Falls"]
    demos = []
    for row in mini.rows:
        turns = []
        for turn in plan(row, stops.get(row.id)):
            turns.append(SFTTurn("policy", turn_text(turn, dialect), True))
            if turn.action is Action.SEARCH:
                page = render([mini.documents[turn.content], other], dialect)
                turns.append(SFTTurn("tool", page, False))
        chosen = "".join(turn.text for turn in turns)
        demos.append(
            SFTRow(
                messages=[*row.prompt, {"role": "assistant", "content": chosen}],
                chosen=chosen,
                question=row.question,
                golden_answers=row.golden_answers,
                found_answer_context=True,
                turns=turns,
                id=row.id,
                n_searches=len(turns) // 2,
                complete=row.id not in stops,
            )
        )
    return demos


@pytest.fixture(scope="session")
def mini() -> Mini:
    return make_mini()


@pytest.fixture(scope="session")
def demos(mini: Mini) -> list[SFTRow]:
    from scout_protocol.dialect import SEARCH_R1

    return make_demos(mini, SEARCH_R1)


@pytest.fixture(scope="session")
def model_dir(mini: Mini, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one layer and 32 channels with its tokenizer."""
    from scout_sft.tiny_model import TinySpec, init_model

    out = tmp_path_factory.mktemp("tiny") / "model"
    spec = TinySpec(vocab=600, min_frequency=2, hidden=32, layers=1, heads=2, max_positions=512)
    init_model(list(mini.documents.values()), mini.rows, out, spec)
    return out


@pytest.fixture(scope="session")
def tokenizer(model_dir: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_dir)


@pytest.fixture(scope="session")
def mini_index(mini: Mini, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of the miniature world."""
    folder = tmp_path_factory.mktemp("index")
    corpus, index = folder / "docs.jsonl", folder / "index"
    corpus.write_text(
        "".join(
            json.dumps({"id": d.id, "title": d.title, "text": d.text}) + "\n" for d in mini.documents.values()
        ),
        encoding="utf-8",
    )
    subprocess.run([*SCOUT, "index", "build", "--index", str(index), str(corpus)], check=True, timeout=60)
    return index


@pytest.fixture(scope="session")
def server_url(mini_index: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A tool server over the miniature world."""
    with tool_server(mini_index, tmp_path_factory.mktemp("server")) as url:
        yield url
