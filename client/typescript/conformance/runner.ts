/** The TypeScript client's runner: the behaviour tables against a running server, a line of JSON for each scenario. */

import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { basename } from "node:path";
import { parseArgs } from "node:util";
import { parse } from "yaml";
import { Client } from "../src/index.js";
import { Replay, type Scenario } from "./replay.js";

/** Why this client leaves a scenario out, by its name. */
const LEFT_OUT: Record<string, string> = {};

const { values, positionals } = parseArgs({ options: { server: { type: "string" } }, allowPositionals: true });
if (values.server === undefined || positionals.length === 0) {
  console.error("usage: runner --server HOST:PORT FILE...");
  process.exit(2);
}

const client = new Client(values.server);
const own = `typescript-${randomBytes(3).toString("hex")}`;
for (const table of positionals) {
  const file = basename(table);
  for (const [number, scenario] of (parse(readFileSync(table, "utf8")) as Scenario[]).entries()) {
    const lacking = LEFT_OUT[scenario.name];
    const why = lacking ?? (await whyNot(scenario, `${own}-${file}-${number}`));
    const outcome = lacking !== undefined ? "left out" : why === "" ? "passed" : "failed";
    process.exitCode = outcome === "failed" ? 1 : process.exitCode;
    console.log(JSON.stringify({ file, scenario: scenario.name, outcome, why }));
  }
}
client.close();

/** What was other than the scenario says; empty if nothing was. */
async function whyNot(scenario: Scenario, id: string): Promise<string> {
  try {
    await new Replay(client, scenario, id).run();
    return "";
  } catch (error) {
    return (error as Error).message || String(error);
  }
}
