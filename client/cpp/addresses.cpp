// Tests how several servers are written, and the order in which they are used: addresses ADDRESS
//
// Exits with 0 if everything is as expected. A server answers at the address.
#include <algorithm>
#include <iostream>
#include <map>
#include <set>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "wattwise.hpp"

namespace v1 = wattwise::v1;

namespace {

using Names = std::vector<std::string>;

void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

void reads_addresses() {
  const std::map<std::string, Names> cases = {
      {"localhost:50051", {"localhost:50051"}},
      {"[::1]:50051", {"[::1]:50051"}},
      {"ipv4:10.0.0.1:1", {"ipv4:10.0.0.1:1"}},
      {"dns:///service:1", {"dns:///service:1"}},
      {"dns:service:1", {"dns:service:1"}},
      {"dns://10.0.0.53/service:1", {"dns://10.0.0.53/service:1"}},
      {"unix:/run/wattwise.sock", {"unix:/run/wattwise.sock"}},
      {"a:1,b:65535", {"a:1", "b:65535"}},
      {"ipv4:10.0.0.1:1,10.0.0.2:2", {"ipv4:10.0.0.1:1", "ipv4:10.0.0.2:2"}},
      {"ipv6:[fd00::1]:1,[fd00::2]:2", {"ipv6:[fd00::1]:1", "ipv6:[fd00::2]:2"}},
      {"10.0.0.1:1,[fd00::2]:2,other:3", {"10.0.0.1:1", "[fd00::2]:2", "other:3"}},
  };
  for (const auto& [address, targets] : cases) {
    require(wattwise::parse_address(address) == targets, "the targets of " + address + " are wrong");
  }
}

// The message names the server that is wrong.
void refuses_malformed_addresses() {
  const std::map<std::string, std::string> cases = {
      {"", ""}, {"localhost", "localhost"}, {":50051", ":50051"}, {"http://a:1", "http://a:1"}, {"a:0", "a:0"},
      {"a:65536,b:1", "a:65536"}, {"a:1,b:x", "b:x"}, {"::1:50051", "::1:50051"}, {"[host]:1", "[host]:1"},
      {"a:1,", ""}, {"a:1,,b:1", ""}, {"a:1, b:1", " b:1"}, {"ipv4:host:1", "host:1"}, {"ipv4:10.0.0.1", "10.0.0.1"},
      {"ipv4:10.0.0.1:1,[::1]:1", "[::1]:1"}, {"ipv6:[::1]:1,10.0.0.1:1", "10.0.0.1:1"}, {"dns:///", ""},
      {"dns:///a:1,b:1", "a:1,b:1"}, {"a:1,dns:///b:1", "dns:///b:1"},
  };
  for (const auto& [address, wrong] : cases) {
    std::string why;
    try {
      wattwise::Client client(address);
    } catch (const std::invalid_argument& error) {
      why = error.what();
    }
    require(why.find(": '" + wrong + "' ") != std::string::npos, "'" + address + "' gave '" + why + "'");
  }
}

void sends_tokens_to_this_machine_only() {
  const std::map<std::string, bool> cases = {
      {"localhost:1,127.0.0.1:2,[::1]:3", true}, {"dns:///localhost:1", true}, {"ipv4:127.0.0.1:1", true},
      {"localhost:1,other:1", false}, {"ipv4:127.0.0.1:1,10.0.0.1:1", false}, {"dns:///other:1", false},
      {"dns://10.0.0.53/localhost:1", false},
  };
  wattwise::Credentials credentials;
  credentials.token = "t";
  for (const auto& [address, allowed] : cases) {
    bool made = true;
    try {
      wattwise::Client client(address, credentials);
    } catch (const std::invalid_argument&) {
      made = false;
    }
    require(made == allowed, "a token for " + address);
  }
}

wattwise::Servers three_servers() {
  std::vector<wattwise::Server> servers;
  for (const char* name : {"a", "b", "c"}) servers.push_back({name, {}, {}, {}, {}, {}});
  return wattwise::Servers(std::move(servers));
}

void draws_an_order() {
  std::map<std::string, int> first;
  for (int i = 0; i < 3000; ++i) ++first[three_servers().current().target];
  for (const auto& [name, count] : first) {
    // Five standard deviations around 1000.
    require(count > 870 && count < 1130, name + " was the first of " + std::to_string(count) + " orders");
  }
}

// Calls that find a server away move to the next one together, and later to the first again.
void moves_and_returns() {
  auto servers = three_servers();
  const auto now = wattwise::Servers::Clock::now();
  const auto& first = servers.current(now);
  servers.move_from(first, now);
  servers.move_from(first, now);
  const auto& second = servers.current(now);
  servers.move_from(second, now);
  const auto& third = servers.current(now);
  require(std::set{first.target, second.target, third.target}.size() == 3, "a server was passed over");
  require(&servers.current(now + std::chrono::minutes(29)) == &third, "the client returned too soon");
  require(&servers.current(now + std::chrono::minutes(31)) == &first, "the client did not return");
}

void warns_once_per_outage() {
  auto servers = three_servers();
  require(servers.begin_outage() && !servers.begin_outage(), "an outage begins twice");
  servers.end_outage();
  require(servers.begin_outage(), "the second outage does not begin");
}

// A server that accepts connections and does not answer is passed over.
void passes_over_a_silent_server(const std::string& answering) {
  const int silent = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof place;
  require(bind(silent, reinterpret_cast<sockaddr*>(&place), size) == 0 && listen(silent, 8) == 0 &&
              getsockname(silent, reinterpret_cast<sockaddr*>(&place), &size) == 0,
          "no socket");
  int warnings = 0;
  // With one attempt in 64, all of them draw the server that answers.
  for (int i = 0; i < 6; ++i) {
    wattwise::Client client("127.0.0.1:" + std::to_string(ntohs(place.sin_port)) + "," + answering);
    client.warn = [&](const std::string&) { ++warnings; };
    client.call(&v1::JobReader::Stub::ListJobs, v1::ListJobsRequest(), std::chrono::seconds(20));
    require(warnings <= i + 1, "an outage was warned of twice");
  }
  close(silent);
}

}  // namespace

int main(int count, char** arguments) {
  try {
    reads_addresses();
    refuses_malformed_addresses();
    sends_tokens_to_this_machine_only();
    draws_an_order();
    moves_and_returns();
    warns_once_per_outage();
    passes_over_a_silent_server(count > 1 ? arguments[1] : "localhost:50051");
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
