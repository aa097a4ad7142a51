"""A client's own exclusion table: which requests it has admitted, and what they stand for. One SQLite file.

It belongs to the owner of the data, outlives every process and every run, and never leaves the machine.
"""

from __future__ import annotations

import hmac
import json
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path

from letheon import config
from letheon.errors import LetheonError, RequestError
from letheon.request import Request
from letheon.runtimes.records import Admitted

_TABLES = """
CREATE TABLE IF NOT EXISTS filed (id TEXT PRIMARY KEY, request TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS admitted (
    life TEXT, position INTEGER, id TEXT, told TEXT NOT NULL, PRIMARY KEY (life, position), UNIQUE (life, id)
);
CREATE TABLE IF NOT EXISTS secret (key BLOB NOT NULL);
"""


class Exclusions:
    """The table in ``path``, created with its folder if need be.

    Args:
        path: the file; of one client alone.
        life: only what was admitted in this life counts. A client has one life; an experiment that compares methods
            gives each its own.
    """

    def __init__(self, path: Path, *, life: str = "") -> None:
        self._path = path
        self._life = life

    def file(self, request: Request, *, id: str = "") -> str:
        """Keep what a request stands for; returns the id, the only thing to tell the server. Twice is once.

        Args:
            request: what is to be forgotten.
            id: under which. By default one that takes this table's secret to derive: from a plain digest of a few small
                numbers anybody finds them by trying, and another site may have samples of the same numbers.
        """
        with self._open() as table:
            id = id or hmac.new(_key(table), request.id.encode(), "sha256").hexdigest()[: len(request.id)]
            table.execute("INSERT OR IGNORE INTO filed VALUES (?, ?)", (id, json.dumps(asdict(request))))
        return id

    def admit(self, asked: Sequence[Admitted]) -> dict[str, Request]:
        """Admit what is new among the requests in force; returns all that concern this client, in order.

        A request about samples that was not filed here covers nothing here.

        Raises:
            RequestError: a request that was admitted before is not named, or named out of order: whoever asks has
                forgotten what was to be forgotten. Or an id is not that of what it is said to be about.
        """
        with self._open() as table:
            rows = "SELECT id, told FROM admitted WHERE life = ? ORDER BY position"
            known = table.execute(rows, (self._life,)).fetchall()
            expected = [Admitted(**json.loads(told)) for _, told in known]
            if list(asked[: len(known)]) != expected:
                raise RequestError(
                    f"requests {', '.join(each.id for each in expected)} were admitted here, in this order, and the "
                    f"server names {', '.join(each.id for each in asked) or 'none'}; continue with the model that "
                    "honours them"
                )
            requests = {each.id: self._resolved(table, each) for each in asked}
            for position in range(len(known), len(asked)):
                row = (self._life, position, asked[position].id, json.dumps(asdict(asked[position])))
                table.execute("INSERT INTO admitted VALUES (?, ?, ?, ?)", row)
        return {id: request for id, request in requests.items() if request is not None}

    def _resolved(self, table: sqlite3.Connection, each: Admitted) -> Request | None:
        if each.scope == "samples":
            row = table.execute("SELECT request FROM filed WHERE id = ?", (each.id,)).fetchone()
            return config.build(Request, json.loads(row[0]), str(self._path)) if row else None
        request = Request(each.scope, each.client, each.label)
        if request.id != each.id:
            raise RequestError(f"request {each.id}: is not the id of scope {each.scope!r}, {each.client or each.label}")
        return request

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A transaction of its own: whole or not at all, on disk when it ends."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch(mode=0o600)  # of what is there already the mode stays as it is
            with closing(sqlite3.connect(self._path, timeout=30, isolation_level=None)) as table:
                table.executescript(f"PRAGMA synchronous = FULL; {_TABLES}")
                table.execute("BEGIN IMMEDIATE")
                try:
                    yield table
                except BaseException:
                    table.execute("ROLLBACK")
                    raise
                table.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            raise LetheonError(f"{self._path}: the exclusion table cannot be used ({error}); see to it") from error


def _key(table: sqlite3.Connection) -> bytes:
    """The table's secret, made when it is first needed."""
    row = table.execute("SELECT key FROM secret").fetchone()
    if row is None:
        row = (secrets.token_bytes(32),)
        table.execute("INSERT INTO secret VALUES (?)", row)
    return bytes(row[0])
