#include "servers.hpp"

#include <algorithm>
#include <random>
#include <stdexcept>
#include <utility>

#include <arpa/inet.h>

namespace wattwise {
namespace {

// After this time a client that has moved tries the first of its servers again, so that a rollout does not leave one idle.
constexpr std::chrono::minutes kReturn{30};

bool starts_with(const std::string& text, const std::string& beginning) { return text.rfind(beginning, 0) == 0; }

bool is_ip(int family, const std::string& host) {
  unsigned char bytes[sizeof(in6_addr)];
  // Without the zone of a link-local address.
  return inet_pton(family, (family == AF_INET6 ? host.substr(0, host.find('%')) : host).c_str(), bytes) == 1;
}

bool is_port(const std::string& text) {
  if (text.empty() || text.size() > 5 || text.find_first_not_of("0123456789") != std::string::npos) return false;
  const int number = std::stoi(text);
  return number > 0 && number < 65536;
}

// Whether a text is host:port, with an IP address as its host if a family is given.
bool is_server(const std::string& text, int family = AF_UNSPEC) {
  const auto colon = text.rfind(':');
  if (colon == std::string::npos || !is_port(text.substr(colon + 1))) return false;
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    return family != AF_INET && is_ip(AF_INET6, host.substr(1, host.size() - 2));
  }
  if (family != AF_UNSPEC) return family == AF_INET && is_ip(AF_INET, host);
  return !host.empty() && host.find_first_of(":,/[] \t\r\n") == std::string::npos;
}

void require(bool holds, const std::string& address, const std::string& server, const std::string& what) {
  if (holds) return;
  throw std::invalid_argument("invalid server address '" + address + "': '" + server + "' is not " + what +
                              "; write host:port, such as localhost:50051, a list host1:50051,host2:50051, or "
                              "dns:///name:50051, without http://");
}

}  // namespace

std::vector<std::string> parse_address(const std::string& address) {
  for (const char* scheme : {"unix:", "unix-abstract:", "xds:"}) {
    if (starts_with(address, scheme)) return {address};
  }
  if (starts_with(address, "dns:")) {
    // dns://name-server/name:port
    const auto slash = starts_with(address, "dns://") ? address.find('/', 6) : 3;
    const std::string name = slash == std::string::npos ? address : address.substr(slash + 1);
    require(is_server(name), address, name, "host:port");
    return {address};
  }
  const bool ipv4 = starts_with(address, "ipv4:");
  const bool ipv6 = starts_with(address, "ipv6:");
  const std::string scheme = ipv4 || ipv6 ? address.substr(0, 5) : "";
  const int family = ipv4 ? AF_INET : ipv6 ? AF_INET6 : AF_UNSPEC;
  std::vector<std::string> targets;
  for (auto begin = scheme.size();;) {
    const auto end = std::min(address.find(',', begin), address.size());
    const std::string server = address.substr(begin, end - begin);
    require(is_server(server, family), address, server,
            scheme.empty() ? "host:port" : "an " + scheme.substr(0, 4) + " address with a port");
    targets.push_back(scheme + server);
    if (end == address.size()) return targets;
    begin = end + 1;
  }
}

Servers::Servers(std::vector<Server> servers) : servers_(std::move(servers)) {
  std::shuffle(servers_.begin(), servers_.end(), std::random_device());
}

const Server& Servers::current(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  if (now - moved_at_ > kReturn) current_ = 0;
  return servers_[current_];
}

void Servers::move_from(const Server& server, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  if (&servers_[current_] != &server) return;
  current_ = (current_ + 1) % servers_.size();
  moved_at_ = now;
}

void Servers::wait(std::chrono::milliseconds pause) const {
  const auto until = std::chrono::system_clock::now() + pause;
  grpc::CompletionQueue queue;
  const auto watch = [&](grpc::Channel& channel) {
    channel.NotifyOnStateChange(channel.GetState(/*try_to_connect=*/false), until, &queue, &channel);
  };
  for (const Server& server : servers_) watch(*server.channel);
  auto watched = servers_.size();
  void* channel = nullptr;
  for (bool changed = false; watched > 0 && queue.Next(&channel, &changed);) {
    if (changed) {
      watch(*static_cast<grpc::Channel*>(channel));
    } else {
      --watched;
    }
  }
}

bool Servers::begin_outage() {
  const std::lock_guard lock(mutex_);
  return !std::exchange(away_, true);
}

void Servers::end_outage() {
  const std::lock_guard lock(mutex_);
  away_ = false;
}

}  // namespace wattwise
