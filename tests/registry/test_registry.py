"""Changes reach every instance, in order, whole or not at all; a database that is away takes nothing away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete
from sqlalchemy.exc import IntegrityError

from gateway import config, keys
from gateway.registry import tables
from gateway.registry.book import Book, Contents, anchor
from gateway.registry.change import Actor, Change
from gateway.registry.database import Database, Unavailable
from gateway.registry.registry import Registry
from gateway.registry.rows import KeyRow, OrganisationRow, TenantRow
from gateway.settings_tenants import Organisation, Tenant
from tests.registry.databases import KINDS, fresh_url, refused

pytestmark = pytest.mark.asyncio
ME = Actor("op", "operator", "127.0.0.1", "req_1")
FILE = """
pools: {p: {kind: vllm, replicas: [{name: a, url: "http://10.0.0.1:8000"}]}}
models: {m: {context: 4096, tiers: [{targets: [{pool: p, model: x}]}]}}
organisations: {corp: {limits: {concurrency: 9}}}
tenants: {filed: {organisation: corp, weight: 3, keys: [{id: f1, hash: "sha256:%s"}]}}
""" % ("0" * 64)
BASE = config.parse(FILE, "test.yaml", {}).config


class Seen:
    """An instance: its registry, and what its data plane was told."""

    def __init__(self, database: Database) -> None:
        self.told: list[frozenset[str] | None] = []
        clock = count(1_000_000)
        self.registry = Registry(
            database, BASE, now_us=lambda: next(clock), changed=lambda _, touched: self.told.append(touched)
        )

    @property
    def book(self) -> Book:
        return self.registry.book


@asynccontextmanager
async def instances(url: str, number: int = 1) -> AsyncIterator[list[Seen]]:
    databases = [Database(url) for _ in range(number)]
    seen = [Seen(database) for database in databases]
    for one in seen:
        await one.registry.start()
    try:
        yield seen
    finally:
        for one in seen:
            await one.registry.close()
        for database in databases:
            await database.close()


async def add(change: Change, name: str, *key_ids: str, **settings: Any) -> None:
    await change.add_tenant(TenantRow(name, Tenant.model_validate(settings), created_at=change.now))
    for key_id in key_ids:
        await change.add_key(KeyRow(key_id, name, keys.digest(key_id), "abcd", created_at=change.now, created_by="op"))


async def until(condition: Any, seconds: float = 3.0) -> float:
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not condition():
        assert loop.time() - began < seconds, "not seen in time"
        await asyncio.sleep(0.005)
    return loop.time() - began


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_written_is_read_back_the_same(kind: str, tmp_path: Path) -> None:
    settings = Tenant.model_validate(
        {
            "organisation": "corp", "weight": 2.5, "class": "batch", "models": ["m", "x-*"], "isolation": "salted",
            "limits": {"requests_per_minute": 60, "usd_per_day": 1.5}, "model_limits": {"m": {"concurrency": 2}},
            "policy": {"pools": ["p"], "spill": False},
            "reservations": {"p": {"rate_share": 0.25, "schedule": [{"days": ["mon"], "from": "08:00"}]}},
        }
    )  # fmt: skip
    async with instances(await fresh_url(kind, tmp_path)) as [one]:
        async with one.registry.change(ME) as change:
            await change.add_tenant(TenantRow("acme", settings, created_at=7, updated_at=8))
            await change.add_organisation(
                OrganisationRow("org", Organisation.model_validate({"limits": {"concurrency": 4}}))
            )
        found = one.book.tenant("acme")
        assert found == TenantRow("acme", settings, False, 1, 7, 8)
        assert one.told == [None, frozenset({"acme"})]
        assert one.book.config().organisations["org"].limits.concurrency == 4
        assert set(one.book.tenants()) == {"acme", "filed"}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_tenant_goes_with_all_its_keys_in_one_transaction(kind: str, tmp_path: Path) -> None:
    async with instances(await fresh_url(kind, tmp_path)) as [one]:
        async with one.registry.change(ME) as change:
            await add(change, "acme", "k1", "k2", reservations={"p": {"rate_share": 0.1}})
        assert set(one.book.keys("acme")) == {"k1", "k2"}
        async with one.registry.change(ME) as change:
            await change.drop_tenant("acme")
        assert (one.book.tenant("acme"), one.book.keys("acme")) == (None, {})
        async with one.registry.change(ME) as change:
            assert await change.key("k1") is None
            await add(change, "acme")  # the name is free again, and nothing of the old one is left
        assert one.book.tenant("acme").settings.reservations == {}  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_change_that_fails_leaves_nothing(kind: str, tmp_path: Path) -> None:
    async with instances(await fresh_url(kind, tmp_path)) as [one]:
        async with one.registry.change(ME) as change:
            await add(change, "acme", "k1")
        version = one.book.version
        with pytest.raises(IntegrityError) as caught:
            async with one.registry.change(ME) as change:
                await add(change, "other", "k2", "k1")
        assert keys.digest("k1") not in str(caught.value)  # errors are logged: parameters stay out of them
        assert (one.book.version, one.book.tenant("other")) == (version, None)
        async with one.registry.change(ME) as change:
            assert change.version == version + 1  # the version was not spent


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_another_instance_sees_a_change_within_a_second(kind: str, tmp_path: Path) -> None:
    async with instances(await fresh_url(kind, tmp_path), 2) as [one, two]:
        async with one.registry.change(ME) as change:
            await add(change, "acme", "k1")
        assert await until(lambda: "k1" in two.book.keys("acme")) < 1.0
        async with one.registry.change(ME) as change:
            row = await change.key("k1")
            assert row is not None
            await change.set_key(replace(row, revoked_at=change.now))
        assert await until(lambda: two.book.keys("acme")["k1"].revoked_at is not None) < 1.0
        assert two.told == [None, frozenset({"acme"}), frozenset({"acme"})]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_changes_of_many_writers_take_turns_and_none_is_missed(kind: str, tmp_path: Path) -> None:
    async with instances(await fresh_url(kind, tmp_path), 3) as seen:

        async def write(one: Seen, name: str) -> None:
            async with one.registry.change(ME) as change:
                await add(change, name)

        await asyncio.gather(*(write(seen[n % 3], f"t{n}") for n in range(18)))
        expected = {f"t{n}" for n in range(18)} | {"filed"}
        for one in seen:
            await until(lambda one=one: one.book.version == 18)
            assert set(one.book.tenants()) == expected


async def test_a_reader_that_has_missed_changes_loads_everything(tmp_path: Path) -> None:
    async with instances(await fresh_url("sqlite", tmp_path), 2) as [one, two]:
        await two.registry.close()  # it does not follow for a while
        for name in ("a", "b", "c"):
            async with one.registry.change(ME) as change:
                await add(change, name)
        async with one.registry.database.transaction() as connection:
            await connection.execute(delete(tables.changes).where(tables.changes.c.version <= 2))
        await two.registry.refresh()
        assert set(two.book.tenants()) == {"a", "b", "c", "filed"}
        assert two.told == [None, None]


async def test_an_older_reading_never_replaces_a_newer() -> None:
    book = Book(BASE)
    new = TenantRow("acme", Tenant(weight=2))
    assert book.take(Contents(5, True, tenants=(new,))) is None
    old = TenantRow("acme", Tenant(weight=1))
    assert book.take(Contents(4, False, tenants=(old,), touched_tenants=frozenset({"acme"}))) == frozenset()
    assert book.take(Contents(5, True)) == frozenset()
    assert (book.version, book.tenant("acme")) == (5, new)


async def test_the_database_goes_away_and_comes_back(tmp_path: Path) -> None:
    url = await fresh_url("postgresql", tmp_path)
    async with instances(url) as [one]:
        async with one.registry.change(ME) as change:
            await add(change, "acme", "k1")
        with refused(url):
            await until(lambda: one.registry.away is not None)
            assert "k1" in one.book.keys("acme")  # what is known stays known
            with pytest.raises(Unavailable):
                async with one.registry.change(ME) as change:
                    await add(change, "lost")
        await until(lambda: one.registry.away is None)
        assert set(one.book.tenants()) == {"acme", "filed"}


async def test_a_row_that_this_version_cannot_read_hides_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with instances(await fresh_url("sqlite", tmp_path), 2) as [one, two]:
        async with one.registry.change(ME) as change:
            await add(change, "strange", "k1")
            await add(change, "plain", "k2")
            table = tables.tenants
            await change.connection.execute(table.update().where(table.c.name == "strange").values(isolation="vacuum"))
        await until(lambda: two.book.version == 1)
        for seen in (one, two):
            assert set(seen.book.tenants()) == {"filed", "plain"}
            assert set(seen.book.config().tenants) == {"filed", "plain"}
        assert "'strange' is left out, this version cannot read its isolation" in caplog.text


async def test_the_file_owns_what_it_declares() -> None:
    book = Book(BASE)
    mine = TenantRow("filed", Tenant(weight=99))
    key = KeyRow("k1", "filed", "sha256:" + "1" * 64)
    stolen = KeyRow("f1", "other", "sha256:" + "2" * 64)
    book.take(Contents(1, True, tenants=(mine, TenantRow("other", Tenant())), keys=(key, stolen)))
    settings = book.config().tenants
    assert settings["filed"].weight == 3
    assert [one.id for one in settings["filed"].keys] == ["k1", "f1"]  # keys may be added to a declared tenant
    assert settings["other"].keys == ()  # an id that the file declares is the file's
    assert book.shadowed() == ["filed"]
    book.declare(BASE.model_copy(update={"tenants": {}}))
    assert book.config().tenants["filed"].weight == 99  # the file has let go of it


async def test_an_anchor_of_a_tenant_that_the_file_dropped_serves_nobody() -> None:
    book = Book(BASE)
    book.take(Contents(1, True, tenants=(anchor("filed", 5),), keys=(KeyRow("k1", "filed", "sha256:" + "1" * 64),)))
    assert [one.id for one in book.config().tenants["filed"].keys] == ["k1", "f1"]
    book.declare(BASE.model_copy(update={"tenants": {}}))
    assert dict(book.config().tenants) == {}


async def test_tenants_follow_a_change_of_their_organisation() -> None:
    book = Book(BASE)
    row = OrganisationRow("org", Organisation())
    book.take(Contents(1, True, organisations=(row,), tenants=(TenantRow("acme", Tenant(organisation="org")),)))
    changed = Contents(2, False, organisations=(row,), touched_organisations=frozenset({"org"}))
    assert book.take(changed) == frozenset({"acme"})
