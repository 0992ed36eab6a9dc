/** Compares the server's answers with a behaviour table. */

import type { WattwiseError } from "../src/index.js";

/** Fields of a table; `null` means unset. */
export type Fields = Record<string, unknown>;

/** An answer differs from the table. */
export class Mismatch extends Error {}

/** Compares a message, whose fields are in camel case, with the fields that a table names. */
export function check(message: object, then: Fields): void {
  for (const [name, expected] of Object.entries(then)) {
    const inId = name === "trial_number";
    const holder = inId && "id" in message ? (message.id as object) : message;
    compare(name, valueOf(holder as Fields, name), expected);
  }
}

/** The value of a field, which may be in a oneof; one that is not set has no value. */
function valueOf(message: Fields, name: string): unknown {
  if (camel(name) in message) {
    return message[camel(name)];
  }
  const cases = Object.values(message).filter(
    (value) => typeof value === "object" && value !== null && "$case" in value,
  );
  const chosen = (cases as { $case: string; value: unknown }[]).find((each) => each.$case === camel(name));
  if (cases.length === 0) {
    throw new Mismatch(`no field ${name}`);
  }
  return chosen?.value;
}

/** Compares an error with a step's `error`, `status`, `fields` and `metadata`. */
export function checkRefusal(error: WattwiseError, step: Fields): void {
  compare("error", error.reason, step["error"]);
  if ("status" in step) {
    compare("status", error.status, step["status"]);
  }
  if ("fields" in step) {
    const fields = error.violations.map((violation) => violation.field);
    compare("fields", fields.sort(), [...(step["fields"] as string[])].sort());
  }
  for (const [key, part] of Object.entries((step["metadata"] ?? {}) as Fields)) {
    const value = error.metadata[key];
    if (part === null ? value !== undefined : !value?.includes(String(part))) {
      throw new Mismatch(`metadata ${key} is ${show(value)}, not ${show(part)}`);
    }
  }
}

/** The messages that have a choice between messages, and the name of the choice. */
const CHOICES: Record<string, string> = { policy: "policy", early_stopping: "rule" };

/** Converts a table's object to a message's: names in camel case, `seed` as bigint, a choice with its case. */
export function fromTable(node: unknown): unknown {
  if (Array.isArray(node)) {
    return node.map(fromTable);
  }
  if (node === null || typeof node !== "object") {
    return node;
  }
  const entries = Object.entries(node).map(([name, value]) => {
    const choice = CHOICES[name];
    const converted = choice === undefined ? fromTable(value) : { [choice]: chosen(value as Fields) };
    return [camel(name), name === "seed" ? BigInt(value as number) : converted];
  });
  return Object.fromEntries(entries);
}

function chosen(value: Fields): object | undefined {
  const [found] = Object.entries(value);
  return found && { $case: camel(found[0]), value: fromTable(found[1]) };
}

/** Refuses unknown keys, which must not be ignored. */
export function checkKeys(node: object, known: string[]): void {
  const unknown = Object.keys(node).filter((name) => !known.includes(name));
  if (unknown.length > 0) {
    throw new Mismatch(`unknown to this runner: ${unknown.join(", ")}`);
  }
}

/** A field's name as in the protos. */
export function snake(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

function compare(name: string, value: unknown, expected: unknown): void {
  if (expected === null) {
    require(value === undefined, name, value, "unset");
  } else if (Array.isArray(expected)) {
    const items = Array.isArray(value) ? value : [];
    require(items.length === expected.length, `number of ${name}`, items.length, expected.length);
    expected.forEach((item, index) => compare(`${name}[${index}]`, items[index], item));
  } else if (typeof expected === "object") {
    check(value as object, expected as Fields);
  } else if (["message", "reason"].includes(name) && expected !== "") {
    require(String(value).includes(String(expected)), name, value, expected);
  } else if (typeof expected === "number") {
    require(isClose(Number(value), expected), name, value, expected);
  } else {
    require(value === expected, name, value, expected);
  }
}

function require(holds: boolean, name: string, value: unknown, expected: unknown): void {
  if (!holds) {
    throw new Mismatch(`${name} is ${show(value)}, not ${show(expected)}`);
  }
}

function isClose(value: number, expected: number): boolean {
  const difference = Math.abs(value - expected);
  return value === expected || difference <= 1e-12 * Math.max(Math.abs(value), Math.abs(expected));
}

function camel(name: string): string {
  return name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
}

function show(value: unknown): string {
  return typeof value === "number" ? String(value) : (JSON.stringify(value) ?? "unset");
}
