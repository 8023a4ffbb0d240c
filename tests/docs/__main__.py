"""Write the generated pages: `python -m tests.docs`."""

from __future__ import annotations

from tests.docs.generated import pages
from tests.style.sources import ROOT


def main() -> None:
    """Write every generated page and name those that changed."""
    for path, make in pages().items():
        file, text = ROOT / path, make()
        if not file.exists() or file.read_text() != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            print(path)


if __name__ == "__main__":
    main()
