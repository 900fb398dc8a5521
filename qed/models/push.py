"""Uploads a model folder to the Hugging Face hub, with the token from the environment or `hf auth login`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import HfApi, ModelCard, constants, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled, RepositoryNotFoundError
from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

from qed.errors import QedError, UsageError

# Files of an earlier upload to delete: adapters or shards next to other weights would be loaded with them.
REPLACED = ["*.safetensors", "*.json", "*.jinja"]


class Target:
    """A model repository on the hub, checked before anything is written.

    Args:
        name: `owner/name`, or `name` for a repository of the token's owner.
        public: whether the repository is public; private otherwise.

    Raises:
        UsageError: the name is invalid, there is no token, or the repository exists and `public` does not match it.
        QedError: the hub cannot be reached, or rejects the token.
    """

    def __init__(self, name: str, public: bool) -> None:
        if not get_token():
            raise UsageError(
                "--push needs a token of the Hugging Face hub: run `hf auth login`, or set HF_TOKEN in the environment."
            )
        self.public = public
        self.api = HfApi()
        with _explain_errors(name):
            owner = self.api.whoami()["name"]
            self.name = name if "/" in name else f"{owner}/{name}"
            self._check_visibility()

    @property
    def url(self) -> str:
        """Return the address of the repository."""
        return f"{constants.ENDPOINT}/{self.name}"

    def _check_visibility(self) -> None:
        try:
            private = bool(self.api.model_info(self.name).private)
        except RepositoryNotFoundError:
            return
        if not private and not self.public:
            raise UsageError(
                f"{self.name} is a public repository, but without --public a model is only uploaded to a private one. "
                "Add --public, or use another name."
            )
        if private and self.public:
            raise UsageError(
                f"{self.name} is a private repository, and an upload does not make it public. Remove --public, make "
                f"it public first at {self.url}/settings, or use another name."
            )

    def upload(self, folder: Path, message: str) -> None:
        """Upload a folder in one commit, replacing earlier weights; create the repository if it does not exist."""
        disable_progress_bars()
        with _explain_errors(self.name):
            self.api.create_repo(self.name, private=not self.public, exist_ok=True)
            self.api.upload_folder(
                repo_id=self.name, folder_path=folder, commit_message=message, delete_patterns=REPLACED
            )


@contextmanager
def _explain_errors(name: str) -> Iterator[None]:
    """Convert errors of the hub or the network into a QedError."""
    try:
        yield
    except HFValidationError as error:
        raise UsageError(f"--push needs a name on the hub, such as me/my-model, not '{name}'.") from error
    except OfflineModeIsEnabled as error:
        raise UsageError("--push needs the network, but HF_HUB_OFFLINE is set.") from error
    except HfHubHTTPError as error:
        code = error.response.status_code if error.response is not None else 0
        reason = {
            401: "it does not accept the token; create a new one, and run `hf auth login`",
            403: "the token may not write there; it needs write access to this name",
        }.get(code, " ".join(str(error).split())[:300])
        raise QedError(f"The hub refused {name}: {reason}.") from error
    except OSError as error:
        raise QedError(f"The hub cannot be reached at {constants.ENDPOINT}: {str(error)[:200]}.") from error
    except Exception as error:  # the HTTP client's own errors differ between its versions
        if type(error).__module__.split(".")[0] not in {"httpx", "httpx2", "httpcore"}:
            raise
        raise QedError(f"The hub cannot be reached at {constants.ENDPOINT}: {str(error)[:200]}.") from error


def find_license(model: str) -> str:
    """Return the license in the model card of a local model folder; empty if there is none."""
    card = Path(model) / "README.md"
    if not card.is_file():
        return ""
    try:
        return str(ModelCard.load(card).data.get("license") or "")
    except (OSError, ValueError, TypeError):
        return ""
