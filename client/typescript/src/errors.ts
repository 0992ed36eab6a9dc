/** The errors that this package throws, and the tables that map a server's error to a class. */

import { type ServiceError, status } from "@grpc/grpc-js";
import { decodeDetails, type Violation } from "./details.js";
import { ErrorReason } from "./stubs/wattwise/v1/error_reason.js";

export type { Violation } from "./details.js";

const DOMAIN = "wattwise.v1";

/** The properties of an error besides its message. */
export interface Refusal {
  /**
   * Why the server refused the call; undefined if the error does not come from a Wattwise server. A reason that is newer
   * than this client is its name, which `ErrorReason` does not list.
   */
  reason?: ErrorReason;
  /** Name of the gRPC status, such as "NOT_FOUND"; empty if no call was made. */
  status?: string;
  /**
   * The faults of the request, or what differs, by field. Of very many, a last one without a field says how many more there
   * are.
   */
  violations?: readonly Violation[];
  /** The keys that `ErrorReason` documents for each reason. */
  metadata?: Readonly<Record<string, string>>;
  cause?: unknown;
}

/**
 * Base class of all errors of this package. Distinguish them by `reason` or with `instanceof`. An error of a server whose
 * reason is newer than this package has the class of its gRPC status.
 */
export class WattwiseError extends Error {
  readonly reason: ErrorReason | undefined;
  readonly status: string;
  readonly violations: readonly Violation[];
  readonly metadata: Readonly<Record<string, string>>;

  constructor(message: string, refusal: Refusal = {}) {
    super(message, { cause: refusal.cause });
    this.name = new.target.name;
    this.reason = refusal.reason;
    this.status = refusal.status ?? "";
    this.violations = refusal.violations ?? [];
    this.metadata = refusal.metadata ?? {};
  }

  /** The id of the failed call in the server's log; empty if no server answered. */
  get callId(): string {
    return this.metadata["call_id"] ?? "";
  }

  /** Whether the same call may succeed later. */
  get retryable(): boolean {
    return this.metadata["retryable"] === "true";
  }
}

/** The configuration of a job or of its policy is invalid; `violations` lists the faults. */
export class InvalidJobSpecError extends WattwiseError {}

/** A job with another configuration is registered under this id; `violations` lists what differs. */
export class JobDiffersError extends WattwiseError {}

/** No job has this id. */
export class JobNotFoundError extends WattwiseError {}

/** The job has no such trial: it never had one, or the server has lost it with its database. */
export class TrialNotFoundError extends WattwiseError {}

/** The trial was deleted with its job: stop training, and neither import the trial nor register the job again. */
export class TrialDeletedError extends WattwiseError {}

/** No batch size is left to try: the message says what failed and what to change; `metadata` lists the batch sizes by cause. */
export class NoBatchSizeLeftError extends WattwiseError {}

/** A valid call is not possible in the present state; the message says what to change first. */
export class NotPossibleNowError extends WattwiseError {}

/** A reported result has invalid numbers or contradicts an earlier one; the server has stored nothing of it. */
export class InvalidResultError extends WattwiseError {}

/** A field of a request is missing or invalid, or the request cannot be read; `violations` lists the faults. */
export class InvalidRequestError extends WattwiseError {}

/** A limit of the server is reached; `metadata` says which, if the server does. */
export class ResourceExhaustedError extends WattwiseError {}

/** The token is missing, unknown or expired. */
export class UnauthenticatedError extends WattwiseError {}

/** The token does not allow this call, or not for this job. */
export class PermissionDeniedError extends WattwiseError {}

/** The server, or a proxy in front of it, does not support the call. */
export class UnsupportedCallError extends WattwiseError {}

/** The server failed; see its log. */
export class ServerError extends WattwiseError {}

/** The server's answer is incomplete, unusable or about something else: the server is faulty, or another one. */
export class InvalidAnswerError extends ServerError {}

/** The address, the token or a certificate is invalid; the message says which, and what to do. */
export class ConfigurationError extends WattwiseError {}

/** The server cannot be reached or cannot answer at the moment; the message has its address and the cause. */
export class ServerUnavailableError extends WattwiseError {
  override get retryable(): boolean {
    return (this.metadata["retryable"] ?? "true") === "true";
  }
}

/** The server did not answer in time. */
export class DeadlineError extends ServerUnavailableError {
  override get retryable(): boolean {
    return false;
  }
}

/** The server's certificate cannot be verified; the message says why. */
export class UntrustedServerError extends ServerUnavailableError {
  override get retryable(): boolean {
    return false;
  }
}

type ErrorClass = new (message: string, refusal: Refusal) => WattwiseError;

const BY_REASON: Partial<Record<ErrorReason, ErrorClass>> = {
  [ErrorReason.ERROR_REASON_INVALID_JOB_SPEC]: InvalidJobSpecError,
  [ErrorReason.ERROR_REASON_JOB_DIFFERS]: JobDiffersError,
  [ErrorReason.ERROR_REASON_JOB_NOT_FOUND]: JobNotFoundError,
  [ErrorReason.ERROR_REASON_TRIAL_NOT_FOUND]: TrialNotFoundError,
  [ErrorReason.ERROR_REASON_TRIAL_DELETED]: TrialDeletedError,
  [ErrorReason.ERROR_REASON_NO_BATCH_SIZE_LEFT]: NoBatchSizeLeftError,
  [ErrorReason.ERROR_REASON_NOT_POSSIBLE_NOW]: NotPossibleNowError,
  [ErrorReason.ERROR_REASON_INVALID_RESULT]: InvalidResultError,
  [ErrorReason.ERROR_REASON_INVALID_REQUEST]: InvalidRequestError,
  [ErrorReason.ERROR_REASON_TOO_MANY_JOBS]: ResourceExhaustedError,
  [ErrorReason.ERROR_REASON_TOO_MANY_TRIALS]: ResourceExhaustedError,
  [ErrorReason.ERROR_REASON_TOO_MANY_STREAMS]: ResourceExhaustedError,
  [ErrorReason.ERROR_REASON_STORAGE_UNAVAILABLE]: ServerUnavailableError,
  [ErrorReason.ERROR_REASON_SHUTTING_DOWN]: ServerUnavailableError,
  [ErrorReason.ERROR_REASON_INTERNAL]: ServerError,
  [ErrorReason.ERROR_REASON_UNAUTHENTICATED]: UnauthenticatedError,
  [ErrorReason.ERROR_REASON_PERMISSION_DENIED]: PermissionDeniedError,
};

/** The classes of errors whose reason is newer than this client. Their metadata says whether a retry helps. */
const OF_LATER_REASONS: Partial<Record<status, ErrorClass>> = {
  [status.INVALID_ARGUMENT]: InvalidRequestError,
  [status.NOT_FOUND]: NotPossibleNowError,
  [status.ALREADY_EXISTS]: NotPossibleNowError,
  [status.FAILED_PRECONDITION]: NotPossibleNowError,
  [status.UNAVAILABLE]: ServerUnavailableError,
  [status.CANCELLED]: ServerUnavailableError,
  [status.DEADLINE_EXCEEDED]: ServerUnavailableError,
  [status.UNAUTHENTICATED]: UnauthenticatedError,
  [status.PERMISSION_DENIED]: PermissionDeniedError,
  [status.RESOURCE_EXHAUSTED]: ResourceExhaustedError,
  [status.UNIMPLEMENTED]: UnsupportedCallError,
};

/** Errors without a reason of ours, which come from gRPC, a proxy or another server: class and message. */
const BY_STATUS: Partial<Record<status, [ErrorClass, string]>> = {
  [status.UNAVAILABLE]: [ServerUnavailableError, "cannot reach a Wattwise server at"],
  [status.CANCELLED]: [ServerUnavailableError, "the call was cancelled by"],
  [status.DEADLINE_EXCEEDED]: [DeadlineError, "deadline exceeded while waiting for"],
  [status.UNAUTHENTICATED]: [UnauthenticatedError, "the call is not authenticated at"],
  [status.PERMISSION_DENIED]: [PermissionDeniedError, "permission denied by"],
  [status.RESOURCE_EXHAUSTED]: [ResourceExhaustedError, "the call exceeds a limit of"],
  [status.INVALID_ARGUMENT]: [ServerError, "the request is invalid according to"],
  [status.UNIMPLEMENTED]: [UnsupportedCallError, "not a Wattwise server, or an older version:"],
};

/** What grpc-js says of a connection that ended during a call, with the status INTERNAL. */
const LOST_CONNECTION =
  /^Received RST_STREAM with code (?:\d+ triggered by internal client error|0 \(Call ended|2 \(Internal server error)/;

const UNKNOWN_AUTHORITY =
  "its certificate is signed by an unknown authority: pass the authority's file as WATTWISE_TLS_CA or tlsCa";

/** OpenSSL's messages, as Node.js passes them on. */
const CERTIFICATE_FAULTS: readonly [RegExp, string][] = [
  [/unable to (get local issuer|verify the first) certificate|self[- ]signed certificate/, UNKNOWN_AUTHORITY],
  [
    /does not match certificate's altnames/,
    "its certificate is for another host name: use a name in the certificate, or reissue it for this name",
  ],
  [/certificate has expired/, "its certificate, or its authority's, has expired: the operator must renew it"],
  [/certificate is not yet valid/, "its certificate is not valid yet: check the clock of this machine"],
  [
    /wrong version number|packet length too long/,
    "it does not use TLS: enable TLS on the server, or disable it in the client",
  ],
];

/** In characters; servers cut their texts to fit into the headers of an answer, which are not larger. */
const LONGEST_TEXT = 8192;
/** What a terminal does not show as it is, apart from spaces: controls, formats, surrogates, unassigned and private ones. */
const UNPRINTABLE = /[\p{C}\p{Zl}\p{Zp}]/gu;

/** A text of the server for logs and terminals: cut if it is very long, without control characters. */
export function shown(text: string): string {
  const cut = text.length > LONGEST_TEXT ? `${text.slice(0, LONGEST_TEXT)}…` : text;
  return cut.replace(UNPRINTABLE, (char) => `\\u{${char.codePointAt(0)?.toString(16)}}`);
}

/** Whether a call failed because its connection ended, rather than because there was none. */
export function endedWithConnection(error: WattwiseError): boolean {
  const { details } = (error.cause ?? {}) as Partial<ServiceError>;
  return details === "Connection dropped" || LOST_CONNECTION.test(details ?? "");
}

/** The error for a failed call to the server at an address. */
export function fromServiceError(error: ServiceError, address: string): WattwiseError {
  const raw = error.metadata?.get("grpc-status-details-bin")[0];
  const details = decodeDetails(typeof raw === "string" ? undefined : raw);
  const name = status[error.code] ?? "UNKNOWN";
  const description = shown(error.details || name);
  if (details.domain !== DOMAIN || details.reason === "") {
    return withoutReason(error, description, address, name);
  }
  const errorClass = BY_REASON[details.reason as ErrorReason] ?? OF_LATER_REASONS[error.code] ?? ServerError;
  const violations = details.violations.map(({ field, description }) => ({
    field: shown(field),
    description: shown(description),
  }));
  const metadata = Object.fromEntries(Object.entries(details.metadata).map((entry) => entry.map(shown)));
  const prefix = errorClass === ServerUnavailableError ? `the server at ${address} is temporarily unavailable: ` : "";
  const suffix = metadata["call_id"] ? ` (call ${metadata["call_id"]})` : "";
  const reason = shown(details.reason) as ErrorReason;
  const refusal = { reason, status: name, violations, metadata, cause: error };
  return new errorClass(`${prefix}${description}${suffix}`, refusal);
}

function withoutReason(error: ServiceError, description: string, address: string, name: string): WattwiseError {
  const fault = CERTIFICATE_FAULTS.find(([pattern]) => error.code === status.UNAVAILABLE && pattern.test(description));
  if (fault !== undefined) {
    const message = `the server at ${address} is not trusted: ${fault[1]} (${description})`;
    return new UntrustedServerError(message, { status: name, cause: error });
  }
  const code = LOST_CONNECTION.test(description) ? status.UNAVAILABLE : error.code;
  const [errorClass, summary] = BY_STATUS[code] ?? [ServerError, "the call failed at"];
  return new errorClass(`${summary} ${address}: ${description}`, { status: status[code] ?? name, cause: error });
}
