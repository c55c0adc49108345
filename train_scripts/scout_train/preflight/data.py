"""Checks of the questions: answers that can be won, an order that is mixed, groups that stay apart."""

from __future__ import annotations

import io
from collections import Counter

from scout_train.preflight.facts import Facts
from scout_train.preflight.finding import Finding, ok, refuse, warn

GROUP_NORMALISED = (
    "grpo",
    "grpo_vectorized",
    "grpo_passk",
    "rloo",
    "rloo_vectorized",
    "reinforce_plus_plus_baseline",
)


def gold(facts: Facts) -> Finding:
    """An answer that repeats a golden one scores 1.0, on every row."""
    from scout_reward.gate import check_golden
    from scout_train.settings import reward_settings

    said = io.StringIO()
    reward = reward_settings(facts.config.scout.reward)
    n_won = check_golden((r.golden_answers for r in facts.rows), reward, str(facts.train), said)
    if n_won == len(facts.rows):
        return ok("gold", f"golden answers score 1.0 on all {len(facts.rows):,} rows")
    return warn("gold", said.getvalue().strip().removeprefix("reward: "), "repair or remove them")


def mixed(facts: Facts) -> Finding:
    """No audit refused this file, and the first steps see every group that it holds in plenty."""
    from scout_data.audit import ORDER_KEYS, audit_path, refusal
    from scout_data.audit_order import window_finding
    from scout_data.findings import Verdict as AuditVerdict

    if reason := refusal(facts.train):
        remedy = "its audit refused it: mend it (scout data mix), or audit it again with --allow FINDING"
        return refuse("mixed", reason, remedy)
    audited = "audited" if audit_path(facts.train).is_file() else "not audited (scout data audit)"
    if bool(facts.config.data.shuffle):
        return ok("mixed", f"{audited}; verl shuffles the rows")
    batch = int(facts.config.data.train_batch_size)
    for key in ORDER_KEYS:
        values = [str(r.data_source if key == "data_source" else r.extra_info.get(key)) for r in facts.rows]
        if len(set(values)) < 2:
            continue
        found = window_finding(key, values, facts.steps, batch)
        if found.verdict is not AuditVerdict.OK:
            make = refuse if found.verdict is AuditVerdict.REFUSE else warn
            return make("mixed", found.said, "mix the file (scout data mix), or leave data.shuffle=true")
    return ok("mixed", f"{audited}; data.shuffle is off and the first {facts.steps} steps see every group")


def groups(facts: Facts) -> Finding:
    """Every group has n members of one question, and a batch of them divides among the cards."""
    n, batch = int(facts.config.actor_rollout_ref.rollout.n), int(facts.config.data.train_batch_size)
    estimator = str(facts.config.algorithm.adv_estimator)
    if n < 2 and estimator in GROUP_NORMALISED:
        return refuse(
            "groups", f"{n} member a group", f"{estimator} compares members: actor_rollout_ref.rollout.n >= 2"
        )
    repeated = [
        (row_id, count) for row_id, count in Counter(r.id for r in facts.rows).most_common(1) if count > 1
    ]
    if repeated:
        row_id, count = repeated[0]
        return refuse(
            "groups",
            f"id {row_id!r} stands on {count} rows",
            "its groups would mix: make ids unique (scout data make)",
        )
    mini = int(facts.config.actor_rollout_ref.actor.ppo_mini_batch_size)
    cards = facts.layout.cards
    for key, size in (
        ("data.train_batch_size", batch),
        ("actor_rollout_ref.actor.ppo_mini_batch_size", mini),
    ):
        if size * n % cards:
            remedy = f"{key} x rollout.n must be a multiple of the {cards} cards"
            return refuse("groups", f"{size} x {n} trajectories", remedy)
    return ok(
        "groups", f"{batch} questions x {n} members, ids unique, {batch * n // cards} trajectories a card"
    )
