"""Errors of an object store's client, as ours: what went wrong, and what to set.

Invariant: each error has the service's own code, where the service gave one, and one sentence that
says what to set. The client hands out some errors as classes and others as text only (a writer's
are an OSError), so the text decides.
"""

from __future__ import annotations

import re
from typing import Final

from pulsar_spark.errors import (
    BucketNotFoundError,
    StorageAccessDeniedError,
    StorageCredentialsError,
    StorageError,
    StorageSettingsError,
    StorageUnavailableError,
)

_NO_BUCKET: Final = frozenset({"NoSuchBucket", "ContainerNotFound"})
"""The codes of S3, Google and those like them, and of Azure, for a missing bucket."""
_REJECTED: Final = frozenset({
    "AuthenticationFailed", "ExpiredToken", "InvalidAccessKeyId", "InvalidAuthenticationInfo",
    "InvalidToken", "NoAuthenticationInformation", "SignatureDoesNotMatch", "TokenRefreshRequired",
})  # fmt: skip
"""The codes for credentials that the service does not take."""
_OF_REGION: Final = frozenset({
    "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect",
})  # fmt: skip
_METADATA: Final = ("/latest/api/token", "/latest/meta-data", "169.254.170.2", "token request")
"""Parts of the addresses at which a machine asks for its own credentials, if no others are set."""
_CREDENTIALS: Final = {
    "s3": "Set storage.aws_access_key_id and storage.aws_secret_access_key, or AWS_ACCESS_KEY_ID "
    "and AWS_SECRET_ACCESS_KEY in the environment (with AWS_SESSION_TOKEN for those of a role); "
    "files in ~/.aws are not read.",
    "gs": "Set storage.google_service_account to the path of a service account's key, or "
    "GOOGLE_SERVICE_ACCOUNT in the environment.",
    "az": "Set storage.azure_storage_account_name and storage.azure_storage_account_key (or "
    "azure_storage_sas_key, or azure_storage_client_id, client_secret and tenant_id), or "
    "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY in the environment.",
}
_RIGHTS: Final = {
    "s3": "s3:ListBucket on the bucket, and s3:GetObject, s3:PutObject and s3:DeleteObject below "
    "the prefix",
    "gs": "the role Storage Object User (roles/storage.objectUser) on the bucket",
    "az": "the role Storage Blob Data Contributor on the container",
}
_ENDPOINT: Final = {
    "s3": "storage.aws_endpoint", "gs": "storage.google_base_url",
    "az": "storage.azure_storage_endpoint",
}  # fmt: skip
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<\n\\]{1,300})")
_BODY: Final = re.compile(r":?\s*(<\?xml|<Error).*", re.DOTALL)


def code_of(error: BaseException) -> str | None:
    """The code in the service's answer; None if it gave none."""
    found = _CODE.search(str(error))
    return None if found is None else found[1]


def lacks_bucket(error: BaseException) -> bool:
    """True if the service said that there is no such bucket."""
    return any(code in str(error) for code in _NO_BUCKET)


def first_line(error: BaseException) -> str:
    return str(error).split("\n", 1)[0]


def service_error(root: str, what: str, error: BaseException) -> StorageError:
    """The client's error about a store at `root` as one of ours; `what` begins its text."""
    scheme = _scheme(root)
    text = f"{what}: {_reported(error)}."
    if isinstance(error, FileNotFoundError) or lacks_bucket(error):
        return BucketNotFoundError(
            f"{text} There is no such bucket as that of {root}: create it, or correct serviceUrl "
            f"or {_ENDPOINT[scheme]}, which does not contain the bucket."
        )
    if code_of(error) == "NoSuchKey":  # to a listing: its address was taken for a file's
        return not_listed(root, text)
    return _refusal(scheme, text, error) or StorageUnavailableError(
        f"{text} The service at {root} did not answer as it should, however often it was asked. "
        f"Nothing stored is damaged. Check the network, the service and {_ENDPOINT[scheme]}, then "
        "start again where this ended; options storage.max_retries and storage.retry_timeout say "
        "how long to wait for it, once it has answered."
    )


def not_listed(root: str, text: str) -> StorageSettingsError:
    """The error that files are stored where no listing finds them."""
    return StorageSettingsError(
        f"{text} What is stored at {root} is not listed there, so nobody would find what is "
        f"published. Set {_ENDPOINT[_scheme(root)]} to the service's address without the bucket: "
        "serviceUrl alone names it."
    )


def _scheme(root: str) -> str:
    return root.partition("://")[0].replace("s3a", "s3")


def _reported(error: BaseException) -> str:
    """The error's first line, with the service's code and message in the place of its XML."""
    text, code, message = str(error), code_of(error), _MESSAGE.search(str(error))
    line = _BODY.sub("", text.split("\n\nDebug source", maxsplit=1)[0].split("\n", 1)[0])
    return ": ".join(filter(None, (line, code, message and message[1].strip()))).rstrip(".: ")


def _refusal(scheme: str, text: str, error: BaseException) -> StorageError | None:
    """The error of a service that refuses until something is set; None if it may pass."""
    full, code = str(error), code_of(error)
    if any(each in full for each in _METADATA):
        return StorageCredentialsError(
            f"{text} No credentials are set, and this machine has none of its own. "
            f"{_CREDENTIALS[scheme]}"
        )
    if code == "RequestTimeTooSkewed":
        return StorageSettingsError(f"{text} Set this machine's clock, by NTP for example.")
    if code in _OF_REGION or "incorrectly configured region" in full:
        return StorageSettingsError(
            f"{text} The bucket is in another region: set storage.aws_region, or AWS_REGION in the "
            "environment, to the bucket's."
        )
    if "builder error" in full:
        return StorageSettingsError(
            f"{text} The request's address can't be used. One that begins with http:// needs the "
            f"option storage.allow_http=true; otherwise correct {_ENDPOINT[scheme]}."
        )
    if code in _REJECTED or "valid authentication credentials" in full or "401 Unauth" in full:
        return StorageCredentialsError(
            f"{text} The service does not take these credentials: they are wrong or have expired. "
            f"{_CREDENTIALS[scheme]}"
        )
    if "lacked the necessary privileges" in full or "403 Forbidden" in full:
        return StorageAccessDeniedError(
            f"{text} The credentials may not do this: give them {_RIGHTS[scheme]}."
        )
    return None
