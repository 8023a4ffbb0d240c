"""How often an operator has set offsets."""

import pytest

from zkrebalancer.protocol import offset_lives
from zkrebalancer.protocol.errors import NodeContentError


def test_what_is_encoded_is_decoded() -> None:
    lives = {0: 3, 1: 3, 2: 7, 5: 3}
    assert offset_lives.encode(lives) == b'{"version":1,"lives":{"3":[[0,1],[5,5]],"7":[[2,2]]}}'
    assert offset_lives.decode(offset_lives.encode(lives)) == lives
    assert offset_lives.decode(b'{"version":1,"lives":{"3":[[0,1]],"7":[[1,1]]}}') == {0: 3, 1: 7}


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"version":2,"lives":{}}', b'{"version":1,"lives":{"x":[[0,1]]}}', b'{"version":1}']
)
def test_invalid_content_is_refused(content: bytes) -> None:
    with pytest.raises(NodeContentError, match="lives"):
        offset_lives.decode(content)


def test_a_new_life_is_above_every_former_one() -> None:
    first = offset_lives.following({}, 4, 100)
    assert first == 5
    assert offset_lives.following({0: first}, 4, 100) == 6  # again, before another plan
    assert offset_lives.following({0: 6}, 9, 100) == 10
    assert offset_lives.following({}, None, 500) == 501  # the group was deleted and created again, and not yet served
    assert offset_lives.following({}, 502, 500) == 503  # its generation continues from the id of a later transaction
