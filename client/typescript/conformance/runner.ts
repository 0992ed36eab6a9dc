/**
 * The TypeScript client's runner: makes the calls that it reads from stdin, a line of JSON each, and prints what it observed
 * of each one. `tests/scenarios/README.md` describes the lines.
 */

import { createInterface } from "node:readline";
import { parseArgs } from "node:util";
import type { ResultStream } from "../src/index.js";
import { Client, WattwiseError } from "../src/index.js";
import { after, type Link, type Progress, type TrialEvent } from "../src/state.js";
import { StreamResultsRequest } from "../src/stubs/wattwise/v1/batch_size_optimizer.js";
import { unaryCalls } from "./calls.js";
import { fromJson, toJson } from "./json.js";

interface Call {
  id: number;
  call: string;
  stream: number;
  request: unknown;
}

const { values } = parseArgs({ options: { server: { type: "string" } } });
if (values.server === undefined) {
  console.error("usage: runner --server HOST:PORT");
  process.exit(2);
}

const client = new Client(values.server);
const unary = unaryCalls(client);
const streams = new Map<number, ResultStream>();
for await (const line of createInterface(process.stdin)) {
  const read = JSON.parse(line) as Call;
  console.log(JSON.stringify({ id: read.id, ...(await observe(read)) }));
}
client.close();

/** Makes a call. An error that is not one of the client ends the program. */
async function observe({ call, stream, request }: Call): Promise<object> {
  try {
    if (call === "state.after") {
      return { answer: stateAfter(request as { state: string; event: TrialEvent }) };
    }
    const streams = call.startsWith("stream.");
    const answer = await (streams ? onStream(call, stream, request) : unary[call]!(fromJson(request)));
    return { answer: toJson(answer) };
  } catch (error) {
    if (!(error instanceof WattwiseError)) {
      throw error;
    }
    const { reason = "", status, violations, metadata } = error;
    return { error: { reason, status, fields: violations.map(({ field }) => field), metadata } };
  }
}

async function onStream(call: string, number: number, request: unknown): Promise<object | null> {
  if (call === "stream.open") {
    streams.set(number, client.streamResults());
    return {};
  }
  const stream = streams.get(number)!;
  switch (call) {
    case "stream.send": {
      const [kind, value] = Object.entries(fromJson(request) as object)[0]!;
      const { event } = StreamResultsRequest.fromPartial({ event: { $case: kind, value } as never });
      if (event?.$case === "result") {
        stream.report(event.value);
      } else {
        stream.heartbeat(event!.value.trial!);
      }
      return {};
    }
    case "stream.receive": {
      const decision = await stream.next();
      return decision === undefined ? null : { decision };
    }
    case "stream.close":
      stream.close();
      return {};
    case "stream.cancel":
      stream.cancel();
      streams.delete(number);
      return {};
    default:
      throw new Error(`${call} is unknown to this runner`);
  }
}

function stateAfter({ state, event }: { state: string; event: TrialEvent }): string {
  const [link, progress] = state.split(" ") as [Link, Progress];
  const next = after({ link, progress }, event);
  return `${next.link} ${next.progress}`;
}
