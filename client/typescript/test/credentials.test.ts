/** Tokens and certificates: authentication, trust, and keeping the token secret. */

import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { hostname } from "node:os";
import { after, before, test } from "node:test";
import { inspect } from "node:util";
import {
  Client,
  ConfigurationError,
  type CredentialOptions,
  Credentials,
  PermissionDeniedError,
  ServerUnavailableError,
  UnauthenticatedError,
  UntrustedServerError,
} from "../src/index.js";
import { isLoopback, isThisMachine } from "../src/credentials.js";
import { epoch, job, Server } from "./server.js";

const server = new Server();
let token: string;
let tlsCa: string;

before(async () => {
  server.certificates();
  token = server.token("trainer");
  tlsCa = server.file("ca.pem");
  const tls = ["--tls-cert", server.file("server.crt"), "--tls-key", server.file("server.key")];
  await server.start(...tls, "--tls-client-ca", tlsCa, "--tokens", server.file("server.tokens"));
});

after(() => server.close());

function client(options: CredentialOptions, address = server.address): Client {
  const own = { tlsCa, tlsCert: server.file("client.crt"), tlsKey: server.file("client.key") };
  return new Client(address, { timeoutMs: 10_000, credentials: new Credentials({ ...own, ...options }) });
}

test("a token and mutual TLS work for unary calls and streams", async () => {
  const trusted = client({ token });
  const trial = await trusted.launch(job());
  assert.equal((await trial.report(epoch(1, 10, 0.95))).converged, true);
  trusted.close();
});

test("a call without a token is unauthenticated, and a trainer may not delete jobs", async () => {
  const anonymous = client({});
  await assert.rejects(anonymous.registerJob(job()), UnauthenticatedError);
  const trainer = client({ token });
  await assert.rejects(trainer.deleteJob("test-x"), PermissionDeniedError);
  anonymous.close();
  trainer.close();
});

test("a token file is read again when it changes", async () => {
  const tokenFile = server.file("token");
  writeFileSync(tokenFile, "ww_0_unknown\n");
  const trainer = client({ tokenFile });
  await assert.rejects(trainer.registerJob(job()), UnauthenticatedError);
  writeFileSync(tokenFile, `${token}\n`);
  assert.equal((await trainer.registerJob(job())).created, true);
  writeFileSync(tokenFile, "");
  assert.equal((await trainer.registerJob(job())).created, true);
  trainer.close();
});

test("a server of an unknown authority is not trusted", async () => {
  const wary = client({ token, tlsCa: server.file("other.pem") });
  await assert.rejects(wary.registerJob(job()), UntrustedServerError);
  wary.close();
});

test("a server whose certificate is for another name is not trusted", async () => {
  const elsewhere = new Server();
  elsewhere.certificates("elsewhere.example.org");
  await elsewhere.start("--tls-cert", elsewhere.file("server.crt"), "--tls-key", elsewhere.file("server.key"));
  const credentials = new Credentials({ tlsCa: elsewhere.file("ca.pem") });
  const wary = new Client(elsewhere.address, { credentials });
  await assert.rejects(wary.registerJob(job()), (error: Error) => /another host name/.test(error.message));
  wary.close();
  await elsewhere.close();
});

test("the server refuses clients without a certificate or without TLS", async () => {
  for (const options of [{ tlsCa }, {}]) {
    const anonymous = new Client(server.address, { timeoutMs: 500, credentials: new Credentials(options) });
    await assert.rejects(anonymous.registerJob(job()), ServerUnavailableError);
    anonymous.close();
  }
});

test("a token is not sent to another machine without TLS, unless that is allowed", () => {
  const far = "10.0.0.7:50051";
  assert.throws(() => new Client(far, { credentials: new Credentials({ token }) }), ConfigurationError);
  new Client(far, { credentials: new Credentials({ token, insecure: true }) }).close();
  new Client(far, { credentials: new Credentials({ token, tls: true }) }).close();
});

test("a token does not appear in inspected objects, errors or JSON", async () => {
  const credentials = new Credentials({ token });
  const lost = new Client("127.0.0.1:1", { timeoutMs: 100, credentials });
  const error = await lost.getJob("x").catch((reason: unknown) => reason);
  for (const shown of [inspect(credentials, { depth: 9, showHidden: true }), JSON.stringify(credentials)]) {
    assert(!shown.includes(token));
  }
  assert(!inspect([lost, error], { depth: 9, showHidden: true }).includes(token));
  assert.throws(
    () => new Client("127.0.0.1:1", { credentials: new Credentials({ token: "two words" }) }),
    (fault: Error) => fault instanceof ConfigurationError && !fault.message.includes("two words"),
  );
  lost.close();
});

test("an invalid file is refused with its name before the first call", () => {
  const broken = server.file("broken.pem");
  writeFileSync(broken, "not a certificate");
  const [cert, other] = [server.file("client.crt"), server.file("server.key")];
  for (const [options, message] of [
    [{ tlsCa: broken }, /tlsCa/],
    [{ tlsCa: server.file("missing.pem") }, /cannot read .*missing.pem/],
    [{ tlsCert: cert }, /tlsKey/],
    [{ tlsCert: cert, tlsKey: other }, /server\.key/],
    [{ tlsCa, tls: false }, /TLS/],
    [{ tokenFile: server.file("missing") }, /token file/],
  ] as const) {
    assert.throws(() => new Client(server.address, { credentials: new Credentials(options) }), message);
  }
});

test("the environment variables are those of the other clients", () => {
  const credentials = Credentials.fromEnv({ WATTWISE_TOKEN: token, WATTWISE_TLS: "1", WATTWISE_TLS_CA: "" });
  assert.equal(credentials.token(), token);
  assert.throws(() => Credentials.fromEnv({ WATTWISE_INSECURE: "maybe" }), ConfigurationError);
});

test("loopback addresses are recognized in every form", () => {
  for (const address of [
    ...["localhost:1", "127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "unix:/tmp/x", "dns:///localhost:1", "LOCALHOST.:1"],
    ...["[::1%lo]:1", "[0:0:0:0:0:0:0:1]:1", "[::ffff:127.0.0.1]:1"],
  ]) {
    assert(isLoopback(address), address);
    assert(isThisMachine(address), address);
  }
  for (const address of [
    "a.localhost:1",
    "ip6-localhost:1",
    "127.1:1",
    "0:1",
    "0.0.0.0:1",
    "[::]:1",
    `${hostname()}:1`,
  ]) {
    assert(isThisMachine(address), address);
    assert(!isLoopback(address), address);
  }
  for (const address of [
    "10.0.0.1:1",
    "127.0.0.1.example.org:1",
    "localhost.example.org:1",
    "ipv4:127.0.0.1:1,9.9.9.9:1",
  ]) {
    assert(!isLoopback(address), address);
    assert(!isThisMachine(address), address);
  }
});
