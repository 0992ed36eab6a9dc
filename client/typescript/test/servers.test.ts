/** Several servers: how a list of them is written, and the order in which they are used. */

import assert from "node:assert/strict";
import { promises } from "node:dns";
import { once } from "node:events";
import { createServer, type Socket } from "node:net";
import { after, before, test } from "node:test";
import { Client, ConfigurationError, Credentials } from "../src/index.js";
import { parseAddress, Servers } from "../src/servers.js";
import { job, Server } from "./server.js";

const server = new Server();

before(() => server.start());

after(() => server.close());

test("an address is one server, a list of them, or a name", () => {
  for (const [address, ...targets] of [
    ["localhost:50051", "localhost:50051"],
    ["[::1]:50051", "[::1]:50051"],
    ["ipv4:10.0.0.1:1", "ipv4:10.0.0.1:1"],
    ["dns:///service:1", "dns:///service:1"],
    ["dns:service:1", "dns:service:1"],
    ["dns://10.0.0.53/service:1", "dns://10.0.0.53/service:1"],
    ["unix:/run/wattwise.sock", "unix:/run/wattwise.sock"],
    ["a:1,b:65535", "a:1", "b:65535"],
    ["ipv4:10.0.0.1:1,10.0.0.2:2", "ipv4:10.0.0.1:1", "ipv4:10.0.0.2:2"],
    ["ipv6:[fd00::1]:1,[fd00::2]:2", "ipv6:[fd00::1]:1", "ipv6:[fd00::2]:2"],
    ["10.0.0.1:1,[fd00::2]:2,other:3", "10.0.0.1:1", "[fd00::2]:2", "other:3"],
  ]) {
    assert.deepEqual(parseAddress(address!), targets);
  }
});

test("a malformed address is refused, with the server that is wrong", () => {
  for (const [address, wrong] of [
    ["", ""],
    ["localhost", "localhost"],
    [":50051", ":50051"],
    ["http://a:1", "http://a:1"],
    ["a:0", "a:0"],
    ["a:65536,b:1", "a:65536"],
    ["a:1,b:x", "b:x"],
    ["::1:50051", "::1:50051"],
    ["[host]:1", "[host]:1"],
    ["a:1,", ""],
    ["a:1,,b:1", ""],
    ["a:1, b:1", " b:1"],
    ["ipv4:host:1", "host:1"],
    ["ipv4:10.0.0.1", "10.0.0.1"],
    ["ipv4:10.0.0.1:1,[::1]:1", "[::1]:1"],
    ["ipv6:[::1]:1,10.0.0.1:1", "10.0.0.1:1"],
    ["dns:///", ""],
    ["dns:///a:1,b:1", "a:1,b:1"],
    ["a:1,dns:///b:1", "dns:///b:1"],
  ]) {
    assert.throws(
      () => new Client(address!),
      (error) => error instanceof ConfigurationError && error.message.includes(`: '${wrong}' `),
      address,
    );
  }
});

test("a token is sent without TLS only if every server of a list is on this machine", () => {
  const credentials = new Credentials({ token: "t" });
  new Client("localhost:1,127.0.0.1:2,[::1]:3", { credentials }).close();
  assert.throws(() => new Client("localhost:1,other:1", { credentials }), ConfigurationError);
  assert.throws(() => new Client("ipv4:127.0.0.1:1,10.0.0.1:1", { credentials }), ConfigurationError);
});

test("every client draws its own order", () => {
  const first = new Map([
    ["a:1", 0],
    ["b:1", 0],
    ["c:1", 0],
  ]);
  for (let i = 0; i < 600; i++) {
    const servers = new Servers([...first.keys()].join(), new Credentials());
    const { target } = servers.current();
    first.set(target, first.get(target)! + 1);
    servers.close();
  }
  // Five standard deviations around 200.
  for (const count of first.values()) {
    assert(count > 142 && count < 258, JSON.stringify([...first]));
  }
});

test("clients spread over the addresses of a name", async (context) => {
  const addresses = [
    { address: "127.0.0.1", family: 4 },
    { address: "127.0.0.2", family: 4 },
  ];
  context.mock.method(promises, "lookup", () => Promise.resolve(addresses));
  const first: (string | undefined)[] = [];
  const accept = (socket: Socket): void => {
    first.push(socket.localAddress);
    socket.destroy();
  };
  const servers = [createServer(accept), createServer(accept)];
  servers[0]!.listen(0, "127.0.0.1");
  await once(servers[0]!, "listening");
  const { port } = servers[0]!.address() as { port: number };
  servers[1]!.listen(port, "127.0.0.2");
  await once(servers[1]!, "listening");
  const used = new Set<string | undefined>();
  for (let i = 0; i < 40 && used.size < 2; i++) {
    first.length = 0;
    const client = new Client(`dns:///wattwise.test:${port}`, { retry: false });
    await assert.rejects(client.getJob("none"));
    client.close();
    used.add(first[0]);
  }
  assert.deepEqual([...used].sort(), ["127.0.0.1", "127.0.0.2"]);
  servers.forEach((each) => each.close());
});

test("calls that find a server away move to the next one together, and later to the first again", (context) => {
  const servers = new Servers("a:1,b:1,c:1", new Credentials());
  const first = servers.current();
  servers.moveFrom(first);
  servers.moveFrom(first);
  const second = servers.current();
  assert.notEqual(second, first);
  servers.moveFrom(second);
  const third = servers.current();
  assert.equal(new Set([first, second, third]).size, 3);
  let now = performance.now() + 29 * 60_000;
  context.mock.method(performance, "now", () => now);
  assert.equal(servers.current(), third);
  now += 2 * 60_000;
  assert.equal(servers.current(), first);
  servers.moveFrom(first);
  assert.equal(servers.current(), second);
  servers.close();
});

test("a server of a name that says that it is unavailable is left for a new connection", () => {
  const servers = new Servers("dns:///a:1", new Credentials());
  const first = servers.current();
  servers.moveFrom(first);
  assert.equal(servers.current(), first);
  servers.moveFrom(first, true);
  assert.notEqual(servers.current(), first);
  assert.equal(servers.current().target, first.target);
  servers.close();
});

test("a server that accepts connections and does not answer is passed over", async () => {
  const sockets: Socket[] = [];
  const silent = createServer((socket) => sockets.push(socket)).listen(0, "127.0.0.1");
  await once(silent, "listening");
  const { port } = silent.address() as { port: number };
  for (let i = 0; i < 4; i++) {
    const client = new Client(`127.0.0.1:${port},${server.address}`);
    await client.registerJob(job(), { timeoutMs: 20_000 });
    client.close();
  }
  sockets.forEach((socket) => socket.destroy());
  silent.close();
});
