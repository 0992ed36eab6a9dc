/** Converts messages from and to proto3 JSON, which the stubs leave out so that the package is small. */

type Fields = Record<string, unknown>;

/** The fields that are messages with nothing but a choice, and the name of the choice. */
const CHOICES: Fields = { policy: "policy", earlyStopping: "rule" };

/** Returns what `fromPartial` of a request takes. */
export function fromJson(node: unknown): unknown {
  if (Array.isArray(node)) {
    return node.map(fromJson);
  }
  if (typeof node === "string" && ["NaN", "Infinity", "-Infinity"].includes(node)) {
    return Number(node);
  }
  return isFields(node) ? mapped(node, (name, value) => [name, fieldFromJson(name, value)]) : node;
}

function fieldFromJson(name: string, value: unknown): unknown {
  if (name === "seed") {
    return BigInt(value as string);
  }
  if (name in CHOICES) {
    const chosen = Object.entries(value as Fields)[0];
    return { [String(CHOICES[name])]: chosen && { $case: chosen[0], value: fromJson(chosen[1]) } };
  }
  return name.endsWith("Time") ? new Date(value as string) : fromJson(value);
}

/** Returns what `JSON.stringify` turns into proto3 JSON. */
export function toJson(value: unknown): unknown {
  if (typeof value === "bigint" || (typeof value === "number" && !Number.isFinite(value))) {
    return String(value);
  }
  if (Array.isArray(value)) {
    return value.map(toJson);
  }
  if (!isFields(value)) {
    return value;
  }
  if (Object.keys(value).join() === "seconds,nanos") {
    return `${value["seconds"]}.${String(value["nanos"]).padStart(9, "0")}s`;
  }
  return mapped(value, (name, field) =>
    isFields(field) && "$case" in field ? [String(field["$case"]), toJson(field["value"])] : [name, toJson(field)],
  );
}

function isFields(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !(value instanceof Date);
}

function mapped(fields: Fields, convert: (name: string, value: unknown) => [string, unknown]): Fields {
  return Object.fromEntries(Object.entries(fields).map(([name, value]) => convert(name, value)));
}
