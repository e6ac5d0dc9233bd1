"""`toolfleet purge` as an operator meets it: looked at first, then done, of one tenant, of one age, or of one run."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.integration.test_cli import Folder
from toolfleet.client import Client, RunRequest
from toolfleet.schemas.agents import AgentSpec
from toolfleet.schemas.effects import Audit
from toolfleet.schemas.files import StoredFile

DAY_S = 86_400.0
OLD_DAYS = 40


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Of each of two tenants an old run and a new one that have ended, one that goes on, and a file."""
    made = Folder(tmp_path)
    assert made.here("db", "upgrade").code == 0

    async def filled(client: Client) -> None:
        await client.store.register_agents([AgentSpec(name="desk", model="scripted")])
        await client.store.add_audit(Audit("approve", True, "fine", "ann", "acme"))
        files = client.store.files
        assert files is not None
        for tenant in ("acme", "other"):
            wanted = [
                RunRequest("desk", f"{what} of {tenant}", tenant=tenant) for what in ("old", "new", "open")
            ]
            old, new, _ = await client.submit(wanted)
            for run_id in (old, new):
                await client.cancel(run_id)
            file = StoredFile(f"file_{tenant}", tenant, "a", "batch", 1, "", "")
            await files.add(file, keep_s=2 * OLD_DAYS * DAY_S, tenant_bytes_max=10)

    made.with_client(filled)
    with sqlite3.connect(tmp_path / "toolfleet.db") as database:
        olds = "(SELECT run_id FROM run_inputs WHERE input LIKE 'old %')"
        database.execute(f"UPDATE runs SET finished_at = finished_at - {OLD_DAYS * DAY_S} WHERE id IN {olds}")
        database.execute(f"UPDATE files SET created_at = created_at - {OLD_DAYS * DAY_S}")
    return made


def _inputs(folder: Folder) -> list[str]:
    return sorted(view.info.input for view in folder.views())


def _files(folder: Folder) -> list[str]:
    async def listed(client: Client) -> Sequence[StoredFile]:
        assert client.store.files is not None
        return await client.store.files.files(limit=10)

    return sorted(one.tenant for one in folder.with_client(listed))


def _audits(folder: Folder) -> list[Audit]:
    return folder.with_client(lambda client: client.store.audits(limit=10))


ALL = sorted(f"{what} of {tenant}" for what in ("old", "new", "open") for tenant in ("acme", "other"))


def test_a_dry_run_says_what_would_go_and_changes_nothing(folder: Folder) -> None:
    said = folder.here("purge", "--older-than", "30d", "--dry-run", "--json").document
    plain = folder.here("purge", "--older-than", "30d", "--dry-run")

    assert said == {"dry_run": True, "runs": 2, "emptied": 0, "batches": 0, "files": 2}
    assert plain.out.startswith("2 runs, 0 batches and 2 files would be forgotten")
    assert (_inputs(folder), _files(folder)) == (ALL, ["acme", "other"])
    assert [one.action for one in _audits(folder)] == ["approve"]


def test_what_is_old_goes_and_the_audit_has_a_row_of_it(folder: Folder) -> None:
    done = folder.here("purge", "--older-than", "30d", "--yes", "--json").document
    again = folder.here("purge", "--older-than", "30d", "--yes", "--json").document

    assert done == {"dry_run": False, "runs": 2, "emptied": 0, "batches": 0, "files": 2}
    assert again == {**done, "runs": 0, "files": 0}
    assert _inputs(folder) == [one for one in ALL if not one.startswith("old")]
    assert _files(folder) == []
    (newest, *_, oldest) = sorted(_audits(folder), key=lambda one: one.at, reverse=True)
    assert newest.action == "purge" and "0 runs" in newest.reason
    assert (oldest.action, oldest.by) == ("approve", "ann"), "who decided what is kept"


def test_one_tenant_is_erased_and_no_other(folder: Folder) -> None:
    done = folder.here("purge", "--older-than", "0s", "--tenant", "acme", "--yes", "--json").document

    assert (done["runs"], done["files"]) == (2, 1)
    assert _inputs(folder) == ["new of other", "old of other", "open of acme", "open of other"]
    assert _files(folder) == ["other"]
    purge = next(one for one in _audits(folder) if one.action == "purge")
    assert (purge.tenant, purge.accepted) == ("acme", True)


def test_one_run_is_erased_whatever_its_age(folder: Folder) -> None:
    by_input = {view.info.input: view.info.run_id for view in folder.views()}
    new, going_on = by_input["new of acme"], by_input["open of acme"]

    looked = folder.here("purge", "--run", new, "--dry-run", "--json").document
    foreign = folder.here("purge", "--run", new, "--tenant", "other", "--yes")
    needed = folder.here("purge", "--run", going_on, "--yes")
    done = folder.here("purge", "--run", new, "--yes")

    assert looked["runs"] == 1
    assert foreign.code == 2 and "no run is called" in foreign.err
    assert needed.code == 2 and "still needed" in needed.err
    assert done.code == 0
    assert _inputs(folder) == [one for one in ALL if one != "new of acme"]
    assert _files(folder) == ["acme", "other"], "files are of no run"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "either --older-than or --run"),
        (("--older-than", "30d", "--run", "run_1"), "either --older-than or --run"),
        (("--older-than", "soon", "--dry-run"), "is no age"),
        (("--older-than", "-1d", "--dry-run"), "is no age"),
        (("--older-than", "30d"), "--dry-run; then say --yes"),
        (("--run", "run_1", "--yes"), "no run is called"),
    ],
)
def test_a_purge_that_is_not_clear_changes_nothing_and_says_why(
    folder: Folder, arguments: tuple[str, ...], said: str
) -> None:
    refused = folder.here("purge", *arguments)

    assert refused.code == 2 and said in refused.err, refused
    assert (_inputs(folder), _files(folder)) == (ALL, ["acme", "other"])
