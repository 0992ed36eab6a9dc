/** The example is run as its first line says. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { join } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";
import { Server } from "./server.js";

test("the example's trial reaches its target", async () => {
  const server = new Server();
  const example = join(import.meta.dirname, "../example/train.js");
  const { stdout } = await promisify(execFile)(process.execPath, [example, await server.start()]);
  assert.match(stdout, /^trial 1 trains with batch size 64\n.*target reached/);
  await server.close();
});
