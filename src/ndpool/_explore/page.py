"""One state as a standalone page: the answer, the script and the style in a single HTML file.

It still plays, steps and shows the window under the pointer, without a server.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

from ndpool._explore.answer import answer
from ndpool._explore.assets import asset
from ndpool._explore.state import parse


def export(path: str | Path, state: str = "") -> Path:
    """Write the page of a state (a query string or a URL of the explorer) to a file."""
    text = page(state)
    path = Path(path)
    path.write_text(text, encoding="utf-8")
    return path


def page(state: str = "") -> str:
    """The page of a state as text."""
    html, style, script = (asset(name) for name in ("index.html", "style.css", "app.js"))
    embedded = json.dumps(answer(parse(state)), ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    # Remove everything that needs a server; the policy allows only the embedded script and style.
    html = re.sub(r"\s*<!-- live -->.*?<!-- /live -->", "", html, flags=re.S)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    charset = '<meta charset="utf-8">'
    parts = {
        charset: f'{charset}\n<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<link rel="stylesheet" href="style.css">': f"<style>{style}</style>",
        '<script type="module" src="app.js"></script>': "",
        "</body>": f'<script type="application/json" id="answer">{embedded}</script>\n'
        f'<script type="module">{script}</script>\n</body>',
    }
    for old, new in parts.items():
        before, found, after = html.partition(old)
        html = before + new + after if found else html
    return html


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
