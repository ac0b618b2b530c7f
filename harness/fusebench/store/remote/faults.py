"""The failures of a store, told apart: each cause has a class, a message and a remedy.

Every fsspec backend raises errors of its own. They are recognised by class name, by error code and by their causes, because importing a
backend to name its classes would need that backend.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator

from ...errors import FusebenchError


class StoreError(FusebenchError):
    """A store that fails for another cause than its subclasses name, after all attempts."""


class StorePackageError(StoreError):
    """The package that reaches this kind of store is not installed, or no package knows this kind."""


class StoreUnreachableError(StoreError):
    """No connection to the store: its address, the network, or the server is at fault."""


class StoreCredentialsError(StoreError):
    """The store knows no credentials of ours, or refuses them."""


class StoreForbiddenError(StoreError):
    """The credentials are good, and do not permit this: for writing, the store is read-only."""


class StoreMissingError(StoreError):
    """The bucket, container or folder does not exist."""


class StoreDamageError(StoreError):
    """A file arrived otherwise than it was sent, at every attempt."""


LASTING = (StorePackageError, StoreCredentialsError, StoreForbiddenError, StoreMissingError)
"""Causes that another attempt does not mend."""

_CREDENTIALS = frozenset(
    {
        *("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "NoAuthTokenError", "TokenRetrievalError"),
        *("DefaultCredentialsError", "RefreshError", "ClientAuthenticationError", "CredentialUnavailableError"),
        *("AuthenticationException", "PermissionDenied", "UnauthorizedSSOTokenError"),
    }
)
"""Classes of botocore, google-auth, azure-identity, paramiko and asyncssh."""
_REFUSED = frozenset(
    {"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "TokenRefreshRequired", "AuthFailure", "401"}
    | {"AuthenticationFailed", "InvalidAuthenticationInfo", "PermissionDenied"}
)
"""Error codes of S3, GCS and Azure, and asyncssh's class, for credentials that the store refuses."""
_FORBIDDEN = frozenset(
    {
        *("AccessDenied", "403", "Forbidden", "AllAccessDisabled", "MethodNotAllowed"),
        *("AuthorizationFailure", "AuthorizationPermissionMismatch", "InsufficientAccountPermissions"),
        *("SFTPPermissionDenied", "SFTPWriteProtect"),
    }
)
"""Error codes of S3, GCS and Azure, and asyncssh's classes."""
_ABSENT = frozenset({"ContainerNotFound", "NoSuchBucket"})
_NO_ACCOUNT = "Must provide either a connection_string or account_name"
"""Azure without any credentials, which has no class for it."""
_UNKNOWN_HOST = frozenset({"HostKeyNotVerifiable"})
_UNREACHABLE = frozenset(
    {
        *("EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ConnectionClosedError", "HTTPClientError"),
        *("ClientConnectorError", "ClientConnectionError", "ServerDisconnectedError", "ServiceRequestError", "TransportError"),
        *("SSLError", "ProxyConnectionError", "ClientPayloadError", "gaierror", "NoValidConnectionsError", "ConnectionLost"),
    }
)
_DAMAGED = frozenset({"FlexibleChecksumError", "ChecksumError", "ContentMD5Error"})
_NETWORK = frozenset({errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT, errno.EPIPE})


def store_fault(error: BaseException, where: str, *, writing: bool) -> StoreError:
    """The StoreError for an exception of a backend.

    Args:
        where: the URL of the file or folder, for the message.
        writing: whether the store was written to.
    """
    if isinstance(error, StoreError):
        return error
    chain = list(_causes(error))
    names = {name for one in chain for name in (kind.__name__ for kind in type(one).__mro__)}
    codes = {code for one in chain if (code := _code(one))}
    told = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if isinstance(error, ImportError) or (isinstance(error, ValueError) and "rotocol not known" in str(error)):
        kind: type[StoreError] = StorePackageError
        text = (
            f"this kind of store cannot be reached: {told}; install its package with `pip install 'fusebench[store]'`, or correct the URL "
            "(s3://, gs://, az://, ssh:// or file://)"
        )
    elif names & _UNKNOWN_HOST:
        kind = StoreCredentialsError
        text = f"the key of that host is not known here: {told}; add it to ~/.ssh/known_hosts, such as by connecting once with ssh"
    elif names & _CREDENTIALS or codes & _REFUSED or _NO_ACCOUNT in told:
        kind, found = StoreCredentialsError, "refused those it got" if (codes | names) & _REFUSED else "none were found"
        text = (
            f"the store wants credentials, and {found}: {told}; set them as for the store's own tools (AWS_ACCESS_KEY_ID, "
            "GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_CONNECTION_STRING, SSH keys; docs/stores.md)"
        )
    elif isinstance(error, PermissionError) or (codes | names) & _FORBIDDEN or getattr(error, "errno", None) == errno.EROFS:
        kind, found = StoreForbiddenError, "the store is read-only" if writing else "the store may not be read"
        text = f"{found} with these credentials: {told}; ask for the permission, or use other credentials"
    elif isinstance(error, FileNotFoundError) or codes & _ABSENT:
        kind, text = StoreMissingError, f"no such bucket, container or folder: {told}; create it, or correct the URL"
    elif names & _DAMAGED:
        kind, text = StoreDamageError, f"damaged on its way: {told}; check the connection"
    elif names & _UNREACHABLE or isinstance(error, ConnectionError | TimeoutError) or getattr(error, "errno", None) in _NETWORK:
        kind, text = StoreUnreachableError, f"the store cannot be reached: {told}; check the address and the network"
    else:
        kind, text = StoreError, f"the store failed: {told}; try again, or ask whoever runs the store"
    return kind(f"{where}: {text}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = error
    seen = set[int]()
    while found is not None and id(found) not in seen:
        yield found
        seen.add(id(found))
        found = found.__cause__ or found.__context__


def _code(error: BaseException) -> str:
    """The error code in the answer of an S3 server, of Azure (`error_code`) or of GCS (`code`, or a text with only its name)."""
    response = getattr(error, "response", None)
    found = response.get("Error", {}).get("Code") if isinstance(response, dict) else None
    found = found if found is not None else getattr(error, "error_code", None) or getattr(error, "code", None)
    if found is None and isinstance(error, OSError) and str(error).startswith("Forbidden: "):
        return "Forbidden"
    return str(getattr(found, "value", found)) if found is not None else ""
