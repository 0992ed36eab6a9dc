/** The TypeScript client's runner: replays behaviour tables against a server and prints a line of JSON per scenario. */

import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { basename } from "node:path";
import { parseArgs } from "node:util";
import { parse } from "yaml";
import { Client } from "../src/index.js";
import { Replay, type Scenario } from "./replay.js";

/** The scenarios that this client cannot replay, with the reason, by name. */
const LEFT_OUT: Record<string, string> = {};

const { values, positionals } = parseArgs({ options: { server: { type: "string" } }, allowPositionals: true });
if (values.server === undefined || positionals.length === 0) {
  console.error("usage: runner --server HOST:PORT FILE...");
  process.exit(2);
}

const client = new Client(values.server);
const runId = `typescript-${randomBytes(3).toString("hex")}`;
for (const table of positionals) {
  const file = basename(table);
  for (const [number, scenario] of (parse(readFileSync(table, "utf8")) as Scenario[]).entries()) {
    const leftOut = LEFT_OUT[scenario.name];
    const why = leftOut ?? (await replay(scenario, `${runId}-${file}-${number}`));
    const outcome = leftOut !== undefined ? "left out" : why === "" ? "passed" : "failed";
    process.exitCode = outcome === "failed" ? 1 : process.exitCode;
    console.log(JSON.stringify({ file, scenario: scenario.name, outcome, why }));
  }
}
client.close();

/** Replays a scenario; returns the first difference, or an empty string. */
async function replay(scenario: Scenario, suffix: string): Promise<string> {
  try {
    await new Replay(client, scenario, suffix).run();
    return "";
  } catch (error) {
    return (error as Error).message || String(error);
  }
}
