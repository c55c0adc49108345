"""The seven question sets of the field, by name: where they come from, how many there are, what they ask.

The copies are FlashRAG's (RUC-NLPIR/FlashRAG_datasets on the Hugging Face hub), which Search-R1 and its
successors evaluate on; the sizes are those of its data set table.
"""

from __future__ import annotations

from typing import NamedTuple

HUB_REPO = "RUC-NLPIR/FlashRAG_datasets"


class Benchmark(NamedTuple):
    """One named set.

    ``data_source`` is Search-R1's name in its parquet files and in our rows. ``hub_file`` is the file of the
    split in `HUB_REPO`; ``n`` its number of questions.
    """

    data_source: str
    title: str
    split: str
    hub_file: str
    n: int
    hops: str
    provenance: str


BENCHMARKS = {
    b.data_source: b
    for b in (
        Benchmark(
            "nq", "NQ", "test", "nq/test.jsonl", 3610, "1",
            "Natural Questions (Kwiatkowski et al. 2019), its open form: the development set of the original "
            "with short answers (Lee et al. 2019), used as test",
        ),
        Benchmark(
            "triviaqa", "TriviaQA", "test", "triviaqa/test.jsonl", 11313, "1",
            "TriviaQA unfiltered (Joshi et al. 2017): its development set, used as test as in DPR",
        ),
        Benchmark(
            "popqa", "PopQA", "test", "popqa/test.jsonl", 14267, "1",
            "PopQA (Mallen et al. 2023): the whole set; there is no training split",
        ),
        Benchmark(
            "hotpotqa", "HotpotQA", "dev", "hotpotqa/dev.jsonl", 7405, "2",
            "HotpotQA (Yang et al. 2018): the development set; no public answers for the test set",
        ),
        Benchmark(
            "2wikimultihopqa", "2Wiki", "dev", "2wikimultihopqa/dev.jsonl", 12576, "2, 4",
            "2WikiMultiHopQA (Ho et al. 2020): the development set; no public answers for the test set",
        ),
        Benchmark(
            "musique", "MuSiQue", "dev", "musique/dev.jsonl", 2417, "2-4",
            "MuSiQue-Ans (Trivedi et al. 2022): the development set; no public answers for the test set",
        ),
        Benchmark(
            "bamboogle", "Bamboogle", "test", "bamboogle/test.jsonl", 125, "2",
            "Bamboogle (Press et al. 2023): the whole set, written by hand",
        ),
    )
}  # fmt: skip
NAMES = tuple(BENCHMARKS)
