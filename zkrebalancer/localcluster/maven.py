"""Finds a mirror of Maven Central in the user's Maven settings, and makes Ivy use it."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET
from xml.sax.saxutils import quoteattr

CENTRAL = "central"
_ALL = {"*", "external:*", CENTRAL}


def user_settings() -> Path:
    """Return the path of the user's Maven settings; the file may be missing."""
    return Path.home() / ".m2" / "settings.xml"


def mirror_of_central(settings: Path) -> str | None:
    """Return the URL of the first mirror of Maven Central, None if there is none."""
    try:
        root = ET.parse(settings).getroot()  # noqa: S314  # the user's own file
    except (OSError, ET.ParseError):
        return None
    for mirror in root.iterfind("{*}mirrors/{*}mirror"):
        mirrored = {name.strip() for name in mirror.findtext("{*}mirrorOf", "").split(",")}
        url = mirror.findtext("{*}url", "").strip()
        if url and mirrored & _ALL and f"!{CENTRAL}" not in mirrored:
            return url
    return None


def ivy_settings(mirror: str) -> str:
    """Return Ivy settings that fetch everything from the Maven repository at `mirror`."""
    return (
        '<ivysettings><settings defaultResolver="mirror"/><resolvers>'
        f'<ibiblio name="mirror" m2compatible="true" root={quoteattr(mirror)}/>'
        "</resolvers></ivysettings>"
    )
