"""Prompts: well formed, hashed, and free of an example answer where they promise it."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

import scout_protocol
from scout_protocol.dialect import get_dialect
from scout_protocol.errors import UserError
from scout_protocol.prompt import PLACEHOLDER, load_prompt, prompt_names, recognise

FOLDER = Path(scout_protocol.__file__).parent / "prompts"


def test_the_promised_prompts_are_there() -> None:
    assert {"search_r1", "system_user", "react", "react_user", "brief", "fact_list"} == set(prompt_names())
    assert prompt_names() == sorted(p.stem for p in FOLDER.glob("*.txt"))


@pytest.mark.parametrize("name", prompt_names())
def test_each_prompt_is_well_formed(name: str) -> None:
    prompt = load_prompt(name)
    assert prompt.sha256 == hashlib.sha256((FOLDER / f"{name}.txt").read_bytes()).hexdigest()
    assert "".join(text for _, text in prompt.messages).count(PLACEHOLDER) == 1
    assert prompt.messages[-1][0] == "user"
    dialect = get_dialect(prompt.dialect)
    text = "".join(text for _, text in prompt.messages)
    assert dialect.search.open in text and dialect.answer.open in text


@pytest.mark.parametrize("name", [n for n in prompt_names() if n != "search_r1"])
def test_no_example_answer(name: str) -> None:
    # a model copies an example: "Beijing" became the answer to everything
    text = "".join(text for _, text in load_prompt(name).messages)
    between = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    assert all(b.strip() in ("", "and") for b in between)
    assert not re.search("beijing|paris|for example|e\\.g\\.", text, re.IGNORECASE)


def test_search_r1_is_the_released_one() -> None:
    ((role, text),) = load_prompt("search_r1").messages
    assert role == "user"
    assert text.startswith(
        "Answer the given question. You must conduct reasoning inside <think> and </think> first"
    )
    assert text.endswith("For example, <answer> Beijing </answer>. Question: {question}")


def test_questions_are_put_in_literally_and_once() -> None:
    question = "Who said {question}, {0} and \\1?"
    message = load_prompt("brief").build(question)[-1]["content"]
    assert message.endswith(f"Question: {question}")
    assert [m["role"] for m in load_prompt("system_user").build("q")] == ["system", "user"]


@pytest.mark.parametrize("question", ["", "  ", "\n\u3000"])
def test_an_empty_question_is_refused(question: str) -> None:
    with pytest.raises(UserError, match=r"question: .* must not be empty"):
        load_prompt("brief").build(question)


def test_an_unknown_prompt_names_the_known_ones() -> None:
    with pytest.raises(
        UserError,
        match=r"prompt: \.\./x: choose one of brief, fact_list, react, react_user, search_r1, system_user",
    ):
        load_prompt("../x")


@pytest.mark.parametrize("name", prompt_names())
def test_a_built_prompt_is_recognised_and_an_edited_one_is_not(name: str) -> None:
    messages = load_prompt(name).build("Who wrote {question}?")
    found = recognise(messages, "Who wrote {question}?")
    assert found is not None and (found.name, len(found.sha256)) == (name, 64)
    messages[-1]["content"] += " "
    assert recognise(messages, "Who wrote {question}?") is None


def test_facts_are_listed_and_a_question_cannot_open_a_slot() -> None:
    prompt = load_prompt("fact_list")
    messages = prompt.build("What of {facts}?", ["Paris is in\nFrance", "the mayor of {question} is B"])
    assert messages[-1]["content"] == (
        "Fact list:\n- Paris is in France\n- the mayor of {question} is B\n\nQuestion: What of {facts}?"
    )
    assert recognise(messages, "What of {facts}?") == prompt
    assert prompt.build("q")[-1]["content"] == "Fact list:\n- none yet\n\nQuestion: q"
    messages[-1]["content"] = messages[-1]["content"].replace("- Paris", "Paris")
    assert recognise(messages, "What of {facts}?") is None


def test_prompts_without_a_fact_list_leave_facts_out() -> None:
    assert load_prompt("brief").build("q", ["x"]) == load_prompt("brief").build("q")
    assert [n for n in prompt_names() if load_prompt(n).has_facts] == ["fact_list"]
