/** Everything that this package throws, and the one table from a server's refusal to an error. */

import { type ServiceError, status } from "@grpc/grpc-js";
import { decodeDetails, type Violation } from "./details.js";
import { ErrorReason } from "./stubs/wattwise/v1/error_reason.js";

export type { Violation } from "./details.js";

const DOMAIN = "wattwise.v1";

/** What an error is made of besides its message. */
export interface Refusal {
  /** Why the server refused the call; undefined if no Wattwise server said so. */
  reason?: ErrorReason;
  /** Name of the gRPC status, such as "NOT_FOUND"; empty if no call was made. */
  status?: string;
  /** The faults of the request, field by field. */
  violations?: readonly Violation[];
  /** What the server added, as `ErrorReason` documents it for each reason. */
  metadata?: Readonly<Record<string, string>>;
  cause?: unknown;
}

/** Base of everything that this package throws; tell them apart by `reason` or with `instanceof`. */
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

  /** What the failed call is named in the server's log; empty if no server said it. */
  get requestId(): string {
    return this.metadata["request_id"] ?? "";
  }

  /** Whether the same call may succeed later. */
  get retryable(): boolean {
    return this.metadata["retryable"] === "true";
  }
}

/** The job's configuration has faults; `violations` lists all of them. */
export class InvalidJobSpecError extends WattwiseError {}

/** The id is taken by another configuration; `metadata` has a key per field that differs. */
export class JobDiffersError extends WattwiseError {}

/** No job has this id. */
export class JobNotFoundError extends WattwiseError {}

/** The job has no such trial. */
export class TrialNotFoundError extends WattwiseError {}

/** A whole pruning round passed and no batch size reached the target: register a job that can be reached. */
export class NoBatchSizeConvergedError extends WattwiseError {}

/** A measurement contradicts itself or an earlier one; the server kept nothing of it. */
export class InvalidResultError extends WattwiseError {}

/** A field of a request is missing or makes no sense. */
export class InvalidRequestError extends WattwiseError {}

/** The call exceeds a limit of the server. */
export class ResourceExhaustedError extends WattwiseError {}

/** The server does not know who is calling. */
export class UnauthenticatedError extends WattwiseError {}

/** The server does not let this caller do it. */
export class PermissionDeniedError extends WattwiseError {}

/** The server, or something on the way to it, does not know the call. */
export class UnsupportedCallError extends WattwiseError {}

/** The server failed; its log tells more. */
export class ServerError extends WattwiseError {}

/** A token, a certificate or an address of the client's cannot be used; the message says which and what to do. */
export class ConfigurationError extends WattwiseError {}

/** The server cannot be reached or cannot work at the moment; the message names its address and the cause. */
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

/** What answers at the server's address cannot show that it is the server; the message says why. */
export class UntrustedServerError extends ServerUnavailableError {
  override get retryable(): boolean {
    return false;
  }
}

type Kind = new (message: string, refusal: Refusal) => WattwiseError;

const BY_REASON: Partial<Record<ErrorReason, Kind>> = {
  [ErrorReason.ERROR_REASON_INVALID_JOB_SPEC]: InvalidJobSpecError,
  [ErrorReason.ERROR_REASON_JOB_DIFFERS]: JobDiffersError,
  [ErrorReason.ERROR_REASON_JOB_NOT_FOUND]: JobNotFoundError,
  [ErrorReason.ERROR_REASON_TRIAL_NOT_FOUND]: TrialNotFoundError,
  [ErrorReason.ERROR_REASON_NO_BATCH_SIZE_CONVERGED]: NoBatchSizeConvergedError,
  [ErrorReason.ERROR_REASON_INVALID_RESULT]: InvalidResultError,
  [ErrorReason.ERROR_REASON_INVALID_REQUEST]: InvalidRequestError,
  [ErrorReason.ERROR_REASON_TOO_MANY_JOBS]: ResourceExhaustedError,
  [ErrorReason.ERROR_REASON_TOO_MANY_STREAMS]: ResourceExhaustedError,
  [ErrorReason.ERROR_REASON_STORAGE_UNAVAILABLE]: ServerUnavailableError,
  [ErrorReason.ERROR_REASON_SHUTTING_DOWN]: ServerUnavailableError,
  [ErrorReason.ERROR_REASON_INTERNAL]: ServerError,
  [ErrorReason.ERROR_REASON_UNAUTHENTICATED]: UnauthenticatedError,
  [ErrorReason.ERROR_REASON_PERMISSION_DENIED]: PermissionDeniedError,
};

/** What gRPC, a proxy or another server says without one of our reasons, and how a user would put it. */
const BY_STATUS: Partial<Record<status, [Kind, string]>> = {
  [status.UNAVAILABLE]: [ServerUnavailableError, "no Wattwise server can be reached at"],
  [status.CANCELLED]: [ServerUnavailableError, "the call was dropped by"],
  [status.DEADLINE_EXCEEDED]: [DeadlineError, "no answer came in time from"],
  [status.UNAUTHENTICATED]: [UnauthenticatedError, "not known who is calling"],
  [status.PERMISSION_DENIED]: [PermissionDeniedError, "the call is not allowed by"],
  [status.RESOURCE_EXHAUSTED]: [ResourceExhaustedError, "the call exceeds a limit of"],
  [status.INVALID_ARGUMENT]: [InvalidRequestError, "the call makes no sense to"],
  [status.UNIMPLEMENTED]: [UnsupportedCallError, "this is no Wattwise server, or an older one:"],
};

const UNKNOWN_AUTHORITY =
  "its certificate is of an authority that is not known here: give the authority's file as WATTWISE_TLS_CA or tlsCa";

/** In Node's words, which are OpenSSL's. */
const CERTIFICATE_FAULTS: readonly [RegExp, string][] = [
  [/unable to (get local issuer|verify the first) certificate|self[- ]signed certificate/, UNKNOWN_AUTHORITY],
  [/does not match certificate's altnames/, "its certificate is for another host name: use a name that is in it"],
  [/certificate has expired/, "its certificate, or its authority's, has expired: the operator must renew it"],
  [/certificate is not yet valid/, "its certificate is not valid yet: is the clock of this machine right?"],
  [/wrong version number|packet length too long/, "it does not talk TLS: turn TLS on there, or off here"],
];

/** The error that stands for a failed call to the server at an address. */
export function fromServiceError(error: ServiceError, address: string): WattwiseError {
  const raw = error.metadata?.get("grpc-status-details-bin")[0];
  const details = decodeDetails(typeof raw === "string" ? undefined : raw);
  const name = status[error.code] ?? "UNKNOWN";
  const said = error.details || name;
  const kind = details.domain === DOMAIN ? BY_REASON[details.reason as ErrorReason] : undefined;
  if (kind === undefined) {
    return withoutReason(error, said, address, name);
  }
  const { violations, metadata } = details;
  const where = kind === ServerUnavailableError ? `the server at ${address} cannot answer now: ` : "";
  const which = metadata["request_id"] ? ` (request ${metadata["request_id"]})` : "";
  const refusal = { reason: details.reason as ErrorReason, status: name, violations, metadata, cause: error };
  return new kind(`${where}${said}${which}`, refusal);
}

function withoutReason(error: ServiceError, said: string, address: string, name: string): WattwiseError {
  const fault = CERTIFICATE_FAULTS.find(([sign]) => error.code === status.UNAVAILABLE && sign.test(said));
  if (fault !== undefined) {
    const message = `the server at ${address} cannot be trusted: ${fault[1]} (${said})`;
    return new UntrustedServerError(message, { status: name, cause: error });
  }
  const [kind, words] = BY_STATUS[error.code] ?? [ServerError, "the call failed at"];
  return new kind(`${words} ${address}: ${said}`, { status: name, cause: error });
}
