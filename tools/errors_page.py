"""Put the messages that are raised now into docs/errors.md, after texts were changed on purpose.

python tools/errors_page.py; then read the difference: `tests/test_docs.py` compares only.
"""

import os
import sys
import tempfile
import textwrap
import warnings
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests import test_docs  # noqa: E402


def main() -> int:
    """Rewrite the page; how many messages changed."""
    page, changed = test_docs.ERRORS, 0
    os.chdir(tempfile.mkdtemp())
    warnings.simplefilter("error")
    for title, found in test_docs.ENTRIES:
        (language, bad), (_, text), _ = found
        if language != "python":
            continue
        namespace = {"__name__": "example"}
        exec(test_docs.SETUP, namespace)
        message = test_docs.run_python(bad, namespace)
        if message is None:
            print(f"{title}: raises nothing", file=sys.stderr)
        elif not test_docs.fits(text, message):
            lines = textwrap.wrap(
                " ".join(message.split()), 98, break_long_words=False, break_on_hyphens=False
            )
            old, new = f"{bad}```\n\n```text\n{text}", f"{bad}```\n\n```text\n" + "\n".join(lines)
            assert page.count(old) == 1, title
            page = page.replace(old, new + "\n")
            changed += 1
            print(f"{title}: {message}")
    (ROOT / "docs" / "errors.md").write_text(page, encoding="utf-8")
    return changed


if __name__ == "__main__":
    print(main(), "messages changed")
