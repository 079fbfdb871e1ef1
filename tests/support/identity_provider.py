"""An identity provider for OAUTHBEARER: signs tokens (JWT), and publishes its keys in a file."""

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa


class Provider:
    """Signs tokens with its newest key."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "keys.json"
        self.keys: dict[str, Any] = {}
        self.rotate("first")

    def rotate(self, key_id: str, *, uses_rsa: bool = False) -> None:
        self.key_id = key_id
        self.key: Any = rsa.generate_private_key(65537, 2048) if uses_rsa else ec.generate_private_key(ec.SECP256R1())
        self.algorithm = "RS256" if uses_rsa else "ES256"
        algorithm = jwt.get_algorithm_by_name(self.algorithm)
        self.keys[key_id] = {**algorithm.to_jwk(self.key.public_key(), as_dict=True), "kid": key_id, "use": "sig"}
        self.file.write_text(json.dumps({"keys": list(self.keys.values())}))

    def token(self, **claims: Any) -> str:
        now = int(time.time())
        content = {"sub": "alice", "aud": "kafka", "iss": "https://idp", "iat": now, "exp": now + 300, **claims}
        content = {name: value for name, value in content.items() if value is not None}
        return jwt.encode(content, self.key, self.algorithm, headers={"kid": self.key_id})

    def settings(self, **more: str) -> dict[str, str]:
        return {
            "sasl.oauthbearer.jwks.endpoint.url": self.file.as_uri(),
            "sasl.oauthbearer.expected.audience": "kafka,other",
            "sasl.oauthbearer.expected.issuer": "https://idp",
        } | {f"sasl.oauthbearer.{name.replace('_', '.')}": value for name, value in more.items()}


@contextmanager
def serving_tokens(provider: Provider, *, thief: Provider) -> Iterator[str]:
    """The URL where clients get a token for their id and secret (RFC 6749, 4.4).

    A client with the secret `wrong` gets one that `thief` signed.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            credentials = self.headers["Authorization"].removeprefix("Basic ")
            user, _, secret = base64.b64decode(credentials).decode().partition(":")
            signer = thief if secret == "wrong" else provider
            answer = {"access_token": signer.token(sub=user), "token_type": "Bearer", "expires_in": 300}
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/token"
    finally:
        server.shutdown()
        server.server_close()
