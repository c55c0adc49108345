"""Opening an index for search: checked first, then mapped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scout_protocol.errors import UserError
from scout_tools import log
from scout_tools.analyzer import TOKENIZER, TOKENIZER_NAME, is_tantivy_error, make_analyzer
from scout_tools.index_files import CHECK_AT_START_BYTES, DamagedError, IndexFiles
from scout_tools.index_meta import IndexMeta, read_meta


class OpenIndex:
    """One index, mapped. Opened before the workers are forked, it is the same one for all of them, and for
    those that take a dead one's place, whatever has become of the folder since.

    Raises:
        UserError: no index there, another format version, or files that are damaged or cannot be opened.
    """

    def __init__(self, index: Path) -> None:
        self.meta: IndexMeta = read_meta(index)
        rebuild = f"rebuild it: scout index build --index {index} SOURCE"
        if self.meta.tokenizer != TOKENIZER:
            raise UserError("index", index, f"was built with tokenizer {self.meta.tokenizer!r}; {rebuild}")
        data = index / self.meta.data
        try:
            self.files = IndexFiles(data, self.meta.files)
            if self.files.bytes <= CHECK_AT_START_BYTES:
                self.files.verify()
            else:
                text = f"{index}: {self.files.bytes / 1e9:.0f} GB are not read at the start"
                log.say("info", "index_not_verified", f"{text}; to check them: scout index verify")
        except DamagedError as error:
            raise UserError("index", index, f"is damaged ({error}); {rebuild}") from error
        self.analyzer = make_analyzer()
        try:
            self.schema, self.searcher = _map(data, self.analyzer)
        except BaseException as error:
            if not isinstance(error, OSError) and not is_tantivy_error(error):
                raise
            why = " ".join(str(error).split())
            raise UserError("index", index, f"cannot be opened ({why}); {rebuild}") from error


def _map(data: Path, analyzer: Any) -> tuple[Any, Any]:
    import tantivy

    opened = tantivy.Index.open(str(data))
    opened.register_tokenizer(TOKENIZER_NAME, analyzer)
    # "manual": tantivy's default starts a thread that polls the folder for changes that never come.
    opened.config_reader(reload_policy="manual")
    opened.reload()
    return opened.schema, opened.searcher()
