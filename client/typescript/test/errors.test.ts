/** Errors whose reason is newer than this client. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { BinaryWriter } from "@bufbuild/protobuf/wire";
import { Metadata, type ServiceError, status } from "@grpc/grpc-js";
import { fromServiceError } from "../src/errors.js";
import {
  InvalidRequestError,
  NotPossibleNowError,
  PermissionDeniedError,
  ResourceExhaustedError,
  ServerError,
  ServerUnavailableError,
  Trial,
  type TrialCalls,
  TrialSession,
  UnauthenticatedError,
  UnsupportedCallError,
  type WattwiseError,
} from "../src/index.js";
import { isOfTrainer } from "../src/session.js";
import { epoch, ghost } from "./server.js";

const REASON = "ERROR_REASON_LATER";

const CLASSES = new Map<status, new (...given: never[]) => WattwiseError>([
  [status.INVALID_ARGUMENT, InvalidRequestError],
  [status.NOT_FOUND, NotPossibleNowError],
  [status.ALREADY_EXISTS, NotPossibleNowError],
  [status.FAILED_PRECONDITION, NotPossibleNowError],
  [status.UNAVAILABLE, ServerUnavailableError],
  [status.DEADLINE_EXCEEDED, ServerUnavailableError],
  [status.UNAUTHENTICATED, UnauthenticatedError],
  [status.PERMISSION_DENIED, PermissionDeniedError],
  [status.RESOURCE_EXHAUSTED, ResourceExhaustedError],
  [status.UNIMPLEMENTED, UnsupportedCallError],
  [status.INTERNAL, ServerError],
  [status.ABORTED, ServerError],
]);

/** A message of the given fields, each a text or a message. */
function message(...fields: [number, string | Uint8Array][]): Uint8Array {
  const writer = new BinaryWriter();
  for (const [number, value] of fields) {
    const tagged = writer.tag(number, 2);
    if (typeof value === "string") {
      tagged.string(value);
    } else {
      tagged.bytes(value);
    }
  }
  return writer.finish();
}

function refusal(code: status, retryable: boolean): WattwiseError {
  const entries = Object.entries({ retryable: String(retryable), call_id: "c1", later: "x" });
  const pairs = entries.map(([key, value]): [number, Uint8Array] => [3, message([1, key], [2, value])]);
  const info = message([1, REASON], [2, "wattwise.v1"], ...pairs);
  const faults = message([1, message([1, "later_field"], [2, "is wrong"])]);
  const details = [
    message([1, "type.googleapis.com/google.rpc.ErrorInfo"], [2, info]),
    message([1, "type.googleapis.com/google.rpc.BadRequest"], [2, faults]),
  ];
  const metadata = new Metadata();
  const packed = message(...details.map((detail): [number, Uint8Array] => [3, detail]));
  metadata.set("grpc-status-details-bin", Buffer.from(packed));
  const error: ServiceError = Object.assign(new Error("no"), { code, details: "no", metadata });
  return fromServiceError(error, "a:1");
}

test("an error with an unknown reason has the class of its status, and all that the server said of it", () => {
  for (const [code, errorClass] of CLASSES) {
    for (const retryable of [true, false]) {
      const error = refusal(code, retryable);
      assert.equal(error.constructor, errorClass, status[code]);
      assert.deepEqual([error.reason, error.callId, error.retryable], [REASON, "c1", retryable]);
      assert.equal(error.metadata["later"], "x");
      assert.deepEqual(error.violations, [{ field: "later_field", description: "is wrong" }]);
      assert.match(error.message, /no \(call c1\)$/);
    }
  }
});

test("a report or a launch that is refused for an unknown reason is no outage", async () => {
  for (const [code, errorClass] of CLASSES) {
    const refused = [InvalidRequestError, NotPossibleNowError].includes(errorClass as never);
    const error = refusal(code, false);
    const denied = [UnauthenticatedError, PermissionDeniedError].includes(errorClass as never);
    assert.equal(isOfTrainer(error), refused || denied, status[code]);
    let sent = 0;
    const calls = {
      reportResult: async () => {
        sent += 1;
        throw error;
      },
    } as unknown as TrialCalls;
    const id = { ...ghost("test"), trialNumber: 0 };
    const trial = new TrialSession(calls, Trial.fromPartial({ id, batchSize: 16 }), 1000);
    await assert.rejects(trial.report(epoch(1, 10, 0.5)), refused ? errorClass : ServerUnavailableError);
    await assert.rejects(trial.report(epoch(2, 20, 0.5)), refused ? errorClass : ServerUnavailableError);
    trial.close();
    assert.equal(sent, refused ? 2 : 1, status[code]);
  }
});
