"""The window explorer: an interactive page that shows the windows of a pool, their elements and the output.

The command ``ndpool explore`` calls `serve` or `export`. `state` parses the settings, `answer` and `snippets`
compute everything the page shows, `server` sends it as JSON, and ``index.html``, ``app.js`` and ``style.css``
only draw it.
"""

from ndpool._explore.page import export
from ndpool._explore.server import serve

__all__ = ["export", "serve"]
