"""The error of a broken invariant."""


class BrokenPromiseError(Exception):
    """The invariant `name` does not hold."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name
