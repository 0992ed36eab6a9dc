/**
 * Decodes `grpc-status-details-bin`: a `google.rpc.Status` with an `ErrorInfo` and a `BadRequest`. The three messages are
 * so small that they are read field by field, without generated code.
 */

import { BinaryReader } from "@bufbuild/protobuf/wire";

/** One fault of one field of a request. */
export interface Violation {
  field: string;
  description: string;
}

/** The details of an error; empty fields if there are none. */
export interface Details {
  domain: string;
  reason: string;
  metadata: Record<string, string>;
  violations: Violation[];
}

const ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo";
const BAD_REQUEST = "type.googleapis.com/google.rpc.BadRequest";

/** Decodes a `google.rpc.Status`. Returns empty details if the bytes are malformed. */
export function decodeDetails(status: Uint8Array | undefined): Details {
  const details: Details = { domain: "", reason: "", metadata: {}, violations: [] };
  if (status === undefined) {
    return details;
  }
  try {
    for (const any of fields(status)[3] ?? []) {
      readAny(any, details);
    }
  } catch {
    // The error does not come from a Wattwise server: only its status is used.
    return { domain: "", reason: "", metadata: {}, violations: [] };
  }
  return details;
}

function readAny(any: Uint8Array, details: Details): void {
  const { 1: type, 2: value } = fields(any);
  const message = fields(value?.[0] ?? new Uint8Array());
  if (text(type) === ERROR_INFO) {
    details.reason = text(message[1]);
    details.domain = text(message[2]);
    for (const entry of message[3] ?? []) {
      const { 1: key, 2: item } = fields(entry);
      details.metadata[text(key)] = text(item);
    }
  } else if (text(type) === BAD_REQUEST) {
    for (const violation of message[1] ?? []) {
      const { 1: field, 2: description } = fields(violation);
      details.violations.push({ field: text(field), description: text(description) });
    }
  }
}

/** The length-delimited fields of a message (strings, bytes, messages) by number; other fields are skipped. */
function fields(message: Uint8Array): Record<number, Uint8Array[]> {
  const found: Record<number, Uint8Array[]> = {};
  const reader = new BinaryReader(message);
  while (reader.pos < reader.len) {
    const [number, type] = reader.tag();
    if (type === 2) {
      (found[number] ??= []).push(reader.bytes());
    } else {
      reader.skip(type, number);
    }
  }
  return found;
}

function text(values: Uint8Array[] | undefined): string {
  return new TextDecoder().decode(values?.at(-1));
}
