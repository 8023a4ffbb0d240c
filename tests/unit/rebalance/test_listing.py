"""A list of names is compared in slices."""

from __future__ import annotations

import pytest

from zkrebalancer.rebalance import listing, scheduler
from zkrebalancer.rebalance.effects import Now
from zkrebalancer.rebalance.listing import Listing
from zkrebalancer.rebalance.scheduler import Scheduler


@pytest.mark.parametrize("work_per_step", [1, 10_000])
def test_names_of_every_slice_are_listed(monkeypatch: pytest.MonkeyPatch, work_per_step: int) -> None:
    """In `Listing._compare_slice`, keep the names of the last slice only: whoever was before it would be missing."""
    monkeypatch.setattr(listing, "NAMES_PER_SLICE", 2)
    monkeypatch.setattr(scheduler, "MAX_WORK_PER_STEP", work_per_step)
    books, seen, missing, compared = Scheduler(), list[str](), list[str](), list[bool]()
    comparison = Listing(books.part("g"), seen.extend, missing.extend, lambda: compared.append(True))
    for names, gone in (("abcde", "xyz"), ("cde", "abxyz"), ("abcdexyz", "")):
        seen.clear()
        missing.clear()
        comparison.compare(tuple(names), list("axbyczde"))
        while (at_us := books.next_deadline_us()) is not None:
            books.now, books.work = Now(at_us, 0), 0
            books.run_next_due()
        assert ("".join(seen), sorted(missing)) == (names, sorted(gone))
    assert compared == [True] * 3
