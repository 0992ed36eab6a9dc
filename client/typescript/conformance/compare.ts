/** Comparing what the server said with what a table says. */

import type { WattwiseError } from "../src/index.js";

/** What a table gives; `null` is unset. */
export type Fields = Record<string, unknown>;

/** Something was other than the table says. */
export class Mismatch extends Error {}

/** Compares the fields that a table names with a message, whose fields are named alike but in camel case. */
export function check(message: object, then: Fields): void {
  for (const [name, expected] of Object.entries(then)) {
    const inId = name === "batch_size" || name === "trial_number";
    const holder = inId && "id" in message ? (message.id as object) : message;
    if (!(camel(name) in holder)) {
      throw new Mismatch(`there is no field ${name}`);
    }
    compare(name, (holder as Fields)[camel(name)], expected);
  }
}

/** Compares a refusal with a step's `error` and what stands beside it. */
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

/** A table's object as a message has it: names in camel case, whole seeds as bigint. */
export function fromTable(given: unknown): unknown {
  if (given === null || typeof given !== "object" || Array.isArray(given)) {
    return given;
  }
  const entries = Object.entries(given).map(([name, value]) => [
    camel(name),
    name === "mab_seed" ? BigInt(value as number) : fromTable(value),
  ]);
  return Object.fromEntries(entries);
}

/** What is not known must not be passed over in silence. */
export function only(given: object, known: string[]): void {
  const unknown = Object.keys(given).filter((name) => !known.includes(name));
  if (unknown.length > 0) {
    throw new Mismatch(`${unknown.join(", ")}: unknown to this runner`);
  }
}

/** A field's name in the protos. */
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
  } else if ((name === "message" || name === "warning") && expected !== "") {
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
