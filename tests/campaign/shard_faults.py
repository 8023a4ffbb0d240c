"""Changes of the number of shards of groups: context managers, as in `process_faults.py`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.campaign.company import Company
from tests.campaign.schedule import Fault
from zkrebalancer.operations import change_shards
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import ABSENT, Content, Create, Get, Multi, SetContent

JUNK = b"{}"


@contextmanager
def set_shards(company: Company, fault: Fault) -> Iterator[str]:
    """Change the number on the live fleet."""
    company.note_step(fault.kind, fault.detail)
    change_shards.change(company.lab.zk, int(fault.detail))
    yield f"{fault.detail} shards"


@contextmanager
def damage_shards(company: Company, fault: Fault) -> Iterator[str]:
    """Overwrite the number. Until it is set again, present leaders continue, and no other coordinator is elected."""
    company.lab.fault(fault.kind, paths.SHARDS)
    is_there = isinstance(company.lab.zk.perform(Get(paths.SHARDS), ABSENT), Content)
    company.lab.zk.perform(Multi(((SetContent if is_there else Create)(paths.SHARDS, JUNK),)))
    yield paths.SHARDS
    change_shards.change(company.lab.zk, int(fault.detail))
