"""The server: trains, and serves the requests that federation.toml lists. There is nothing to change here."""

from pathlib import Path

from letheon.federation.service import service_app

app = service_app(Path(__file__).with_name("federation.toml"))
