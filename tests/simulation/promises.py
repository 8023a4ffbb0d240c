"""What is raised when something does not hold that has to."""


class BrokenPromiseError(Exception):
    """An invariant does not hold; `name` says which one."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name
