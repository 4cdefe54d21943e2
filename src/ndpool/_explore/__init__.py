"""The window explorer: a page that shows how windows move, what they hold and what they give.

The command ``ndpool explore`` calls `serve` or `export`. `state` says what is chosen, `answer` and `snippets`
what ndpool makes of it, `server` hands that to the page, which only draws: ``index.html``, ``app.js``,
``style.css``.
"""

from ndpool._explore.page import export
from ndpool._explore.server import serve

__all__ = ["export", "serve"]
