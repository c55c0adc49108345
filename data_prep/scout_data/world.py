"""A made-up world: fictional people, towns, firms and novels, one document each, and questions about them.

Nothing in it exists, so a model can only answer by searching. The held-out entities are a world of their
own: no fact of theirs, and no entity reachable from them, occurs in any training question. They share the
corpus with the training entities, so the retriever has to tell them apart.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from scout_data.world_names import (
    BOOK_A,
    BOOK_B,
    FIRM_A,
    FIRM_B,
    FIRST,
    LAST,
    RIVER_A,
    RIVER_B,
    TOWN_A,
    TOWN_B,
)
from scout_protocol.errors import UserError


@dataclass(frozen=True, slots=True)
class Relation:
    """A fact of an entity: how a document's reader names it, and how a question asks for it.

    ``noun`` follows "the … of X" in longer questions; ``ask`` is the last hop's question.
    """

    subject: str
    name: str
    range: str
    noun: str
    ask: str


RELATIONS: tuple[Relation, ...] = (
    Relation("person", "born", "town", "birthplace", "Where was {} born?"),
    Relation("person", "works", "firm", "employer", "Which firm does {} work for?"),
    Relation("town", "river", "river", "river", "Which river flows through {}?"),
    Relation("town", "mayor", "person", "mayor", "Who is the mayor of {}?"),
    Relation("firm", "based", "town", "home town", "Where is {} based?"),
    Relation("firm", "founder", "person", "founder", "Who founded {}?"),
    Relation("novel", "author", "person", "author", "Who wrote {}?"),
    Relation("novel", "published", "year", "year", "In which year was {} published?"),
)
_BY_SUBJECT = {
    kind: [r for r in RELATIONS if r.subject == kind] for kind in ("person", "town", "firm", "novel")
}

# How many entities of each kind a split holds.
TRAIN_SIZES = {"person": 480, "town": 200, "firm": 120, "novel": 200}
HELD_OUT_SIZES = {"person": 160, "town": 70, "firm": 50, "novel": 70}
HOPS = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class Entity:
    """A thing with a document. ``facts`` maps a relation's name to the name of its object."""

    name: str
    kind: str
    split: str
    facts: dict[str, str]

    @property
    def text(self) -> str:
        """The entity's document."""
        f = self.facts
        return {
            "person": "{n} was born in {born} and works for {works}.",
            "town": "{n} is a town on the river {river}. The mayor of {n} is {mayor}.",
            "firm": "{n} is a firm based in {based}. It was founded by {founder}.",
            "novel": "{n} is a novel written by {author}. It was published in {published}.",
        }[self.kind].format(n=self.name, **f)


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its answer, and the chain of look-ups that answers it."""

    text: str
    answer: str
    split: str
    start: str
    relations: tuple[Relation, ...]
    chain: tuple[str, ...]  # the object found at each hop; the last is the answer

    @property
    def hops(self) -> int:
        return len(self.relations)

    @property
    def titles(self) -> tuple[str, ...]:
        """Titles of the documents to read, in order."""
        return (self.start, *self.chain[:-1])

    def oracle(self) -> list[dict[str, str]]:
        """The plan of a perfect searcher: per hop what it thinks, searches, finds and may conclude."""
        steps = []
        for i, (title, found) in enumerate(zip(self.titles, self.chain, strict=True)):
            if i == 0:
                think = f"First look up {title}."
            else:
                think = f"The {self.relations[i - 1].noun} is {title}. Next look up {title}."
            steps.append(
                {
                    "think": think,
                    "query": title,
                    "result": found,
                    "conclude": f"The {self.relations[i].noun} is {found}.",
                }
            )
        return steps


@dataclass(slots=True)
class World:
    """All entities by name."""

    seed: int
    entities: dict[str, Entity] = field(default_factory=dict)

    def documents(self) -> Iterator[dict[str, str]]:
        """Corpus rows {id, title, text}, training and held-out entities in one shuffled order."""
        names = sorted(self.entities)
        random.Random(self.seed).shuffle(names)
        for i, name in enumerate(names):
            yield {"id": f"w{i}", "title": name, "text": self.entities[name].text}

    def questions(self, split: str, hops: int) -> list[Question]:
        """Every question of that split with that many hops, in a fixed order.

        A chain that returns to an entity it has visited is left out: its question could be answered
        without the later look-ups.
        """
        found: list[Question] = []
        for entity in self.entities.values():
            if entity.split == split:
                found.extend(self._chains(entity, hops))
        return found

    def sample_questions(self, split: str, hops: int, n: int, seed: int) -> list[Question]:
        """``n`` different questions, each chain of relations as often as any other where there are enough.

        Raises:
            UserError: fewer than ``n`` such questions exist.
        """
        rng = random.Random(f"{self.seed}/{split}/{hops}/{seed}")
        by_chain: dict[tuple[str, ...], list[Question]] = {}
        for question in self.questions(split, hops):
            by_chain.setdefault(tuple(f"{r.subject}.{r.name}" for r in question.relations), []).append(
                question
            )
        for same in by_chain.values():
            rng.shuffle(same)
        if n > sum(map(len, by_chain.values())):
            raise UserError(
                f"{hops}-hop questions", n, f"the {split} split has {sum(map(len, by_chain.values()))}"
            )
        picked: list[Question] = []
        while len(picked) < n:
            for same in by_chain.values():
                if same and len(picked) < n:
                    picked.append(same.pop())
        rng.shuffle(picked)
        return picked

    def _chains(self, start: Entity, hops: int) -> Iterator[Question]:
        def extend(at: Entity, relations: tuple[Relation, ...], chain: tuple[str, ...]) -> Iterator[Question]:
            for relation in _BY_SUBJECT[at.kind]:
                found = at.facts[relation.name]
                if found in chain or found == start.name:
                    continue
                rels, objs = (*relations, relation), (*chain, found)
                if len(rels) == hops:
                    yield _question(start, rels, objs)
                elif found in self.entities:
                    yield from extend(self.entities[found], rels, objs)

        yield from extend(start, (), ())


def _question(start: Entity, relations: tuple[Relation, ...], chain: tuple[str, ...]) -> Question:
    phrase = start.name
    for relation in relations[:-1]:
        phrase = f"the {relation.noun} of {phrase}"
    return Question(relations[-1].ask.format(phrase), chain[-1], start.split, start.name, relations, chain)


def _names(rng: random.Random, first: Sequence[str], second: Sequence[str], n: int) -> list[str]:
    every = [f"{a} {b}" for a in first for b in second]
    if n > len(every):
        raise UserError("world size", n, f"at most {len(every)} names of this kind exist")
    return rng.sample(every, n)


def make_world(
    seed: int = 0, train: dict[str, int] | None = None, held_out: dict[str, int] | None = None
) -> World:
    """Make a world. The same arguments give the same world.

    Args:
        seed: of names and facts.
        train: number of entities per kind for training; `TRAIN_SIZES` by default.
        held_out: likewise for evaluation; `HELD_OUT_SIZES` by default.

    Raises:
        UserError: more entities of a kind than there are names.
    """
    sizes = {"train": train or TRAIN_SIZES, "held_out": held_out or HELD_OUT_SIZES}
    rng = random.Random(seed)
    total = {kind: sum(s[kind] for s in sizes.values()) for kind in TRAIN_SIZES}
    pools = {
        "person": _names(rng, FIRST, LAST, total["person"]),
        "town": _names(rng, TOWN_A, TOWN_B, total["town"]),
        "firm": _names(rng, FIRM_A, FIRM_B, total["firm"]),
        "novel": _names(rng, [f"The {a}" for a in BOOK_A], BOOK_B, total["novel"]),
    }
    rivers = _names(rng, RIVER_A, RIVER_B, len(RIVER_A) * len(RIVER_B))
    world = World(seed)
    for split, counts in sizes.items():
        names = {kind: [pools[kind].pop() for _ in range(n)] for kind, n in counts.items()}
        # Rivers are split as well: a held-out answer is never one that training has seen.
        own = [rivers.pop() for _ in range(len(rivers) // 2)] if split == "train" else rivers
        for kind, members in names.items():
            for name in members:
                facts = {
                    r.name: str(rng.randrange(1500, 2000))
                    if r.range == "year"
                    else rng.choice(own if r.range == "river" else names[r.range])
                    for r in _BY_SUBJECT[kind]
                }
                world.entities[name] = Entity(name, kind, split, facts)
    return world
