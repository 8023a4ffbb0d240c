"""An application polls for its callbacks while it works on a batch of a region, and partitions come and go."""

from __future__ import annotations

import pytest

from consumer_agent.region.sink import Claim
from consumer_agent.region.sqlite_sink import SqliteSink
from consumer_agent.runtime.notices import Tell
from tests.unit.consumer_agent.region.test_region_interrupts import GroupSetting, RegionSetting
from tests.unit.consumer_agent.region.test_state_interrupts import KeptSetting
from tests.unit.consumer_agent.runtime.interrupts import COUNT, PARTITION

FIRST = [0, 1, 2, 3, 4]  # the records of the first batch


@pytest.mark.parametrize("is_within", [True, False])
def test_a_member_that_gives_up_what_it_works_on_has_all_reset(*, is_within: bool) -> None:
    """In `CentralSource._revoked`, only forget: its state gets the batch, with which the next owner begins again."""
    setting = GroupSetting()
    setting.next_batch()
    setting.in_own_thread(setting.fetcher_round)
    setting.shared.tell(Tell.REVOKE, [PARTITION], 7)
    if is_within:
        setting.consumer.poll(0.0, max_records=0)
    else:
        setting.next_batch()
    assert setting.rounds._source.held() == {}
    assert setting.rounds._source.has_lost is is_within


def test_a_state_that_has_a_part_of_a_batch_is_not_stored() -> None:
    """In `PartitionStates._revoked`, count the batch as processed: nobody reads the rest again, which it lacks."""
    setting = KeptSetting()
    setting.process_next()
    setting.in_own_thread(setting.fetcher_round)
    first, *rest = (record.offset for record in setting.next_batch())
    setting.state.append(first)
    setting.begin_move()  # it will be cancelled at once
    setting.consumer.poll(0.0, max_records=0)
    setting.check_copies()
    setting.state += rest
    while len(setting.state) < COUNT:
        setting.process_next()
        setting.check_copies()
    setting.region.checkpoint()
    assert setting.committed == COUNT
    setting.check_copies()


def test_a_partition_that_comes_back_within_a_batch_is_restored_for_the_next_one() -> None:
    """In `PartitionStates._assigned`, restore it at once: the rest of the batch would change what was restored."""
    setting = KeptSetting()
    setting.process_next()
    setting.region.checkpoint()
    setting.in_own_thread(setting.fetcher_round)
    first, *rest = (record.offset for record in setting.next_batch())
    setting.state.append(first)
    setting.lose(5)
    setting.consumer.poll(0.0, max_records=0)
    setting.state += rest
    while len(setting.state) < COUNT:
        setting.process_next()
        setting.check_copies()


def second_batch(setting: RegionSetting) -> None:
    """Store the results of one batch, and have the next one ready."""
    setting.one_batch()
    setting.in_own_thread(setting.fetcher_round)
    assert setting.results() == FIRST


def test_a_partition_that_comes_back_within_a_batch_is_read_on_with_a_sink() -> None:
    """In `ConsistentRegion._begin`, claim as before: the claim is refused, and the present one paused for good."""
    setting = RegionSetting()
    second_batch(setting)
    for batch in setting.region:
        setting.lose()
        setting.consumer.poll(0.0, max_records=0)
        with setting.region.transaction(setting.sink()) as database:
            setting.write(database, batch)
        break
    assert setting.results() == FIRST
    assert setting.consumer.paused() == []
    assert setting.rest() == list(range(COUNT))


def test_a_partition_that_comes_back_within_a_transaction_is_claimed_by_the_next_one() -> None:
    """In `ConsistentRegion._assigned`, claim at once: the open transaction is in the way, and the loop ends."""
    setting = RegionSetting()
    second_batch(setting)
    for batch in setting.region:
        with setting.region.transaction(setting.sink()) as database:
            setting.lose(5)
            setting.consumer.poll(0.0, max_records=0)
            setting.write(database, batch)
        break
    assert setting.results() == list(range(10))
    assert setting.rest() == list(range(COUNT))


def test_what_another_consumer_has_claimed_is_paused_again_if_the_application_resumes_it() -> None:
    """In `ConsistentRegion._begin`, forget it: no batch with such records is stored, for as long as there are any."""
    setting = RegionSetting()
    second_batch(setting)
    assert SqliteSink(setting.database).claim("g", [Claim(PARTITION, 2, "id", 0, 5)]) == {PARTITION: 5}
    setting.one_batch()
    assert setting.consumer.paused() == [PARTITION]
    setting.consumer.resume(setting.consumer.paused())
    setting.in_own_thread(setting.fetcher_round)
    setting.one_batch()
    assert setting.consumer.paused() == [PARTITION]
    assert setting.results() == FIRST


def give_up(setting: RegionSetting) -> None:
    setting.shared.stop([PARTITION])
    setting.shared.tell(Tell.REVOKE, [PARTITION], 7)
    setting.consumer.poll(0.0, max_records=0)


def test_a_partition_that_was_given_up_within_a_batch_and_claimed_elsewhere_ends_no_loop() -> None:
    """In `ConsistentRegion._refuse`, pause all that is refused: what is not assigned cannot be paused."""
    setting = RegionSetting()
    second_batch(setting)
    for batch in setting.region:
        give_up(setting)
        claim = Claim(PARTITION, 2, "id", 0, 5)
        assert SqliteSink(setting.database).claim("g", [claim]) == {PARTITION: 5}
        with setting.region.transaction(setting.sink()) as database:
            setting.write(database, batch)
        break
    assert setting.results() == FIRST


def test_an_error_in_a_batch_is_not_replaced_because_its_partition_was_given_up() -> None:
    """In `ConsistentRegion._seek`, seek all: what is not assigned cannot be sought."""
    setting = RegionSetting()
    second_batch(setting)
    for _ in setting.region:
        give_up(setting)
        with pytest.raises(KeyError, match="own"), setting.region.transaction(setting.sink()):
            raise KeyError("the application's own")
        break
    assert setting.results() == FIRST
