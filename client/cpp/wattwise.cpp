#include "wattwise.hpp"

#include "answers.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>
#include <regex>
#include <set>
#include <sstream>
#include <system_error>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace wattwise {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr char kDomain[] = "wattwise.v1";
constexpr milliseconds kFirstPause{100};
constexpr milliseconds kLongestPause{3'000};
constexpr int kConnectMs = 2'000;
constexpr std::size_t kMostBytes = 16 << 20;

// Detects a server that no longer answers within both times, which are shorter if there is another server.
struct Pings {
  int interval_ms;
  int timeout_ms;
};
constexpr Pings kPings{30'000, 10'000};
constexpr Pings kFrequentPings{10'000, 3'000};

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  const std::string text = value == nullptr ? "" : value;
  if (std::any_of(text.begin(), text.end(), [](unsigned char letter) { return letter < ' ' || letter == 0x7f; })) {
    throw std::invalid_argument(std::string(name) + " has a control character; remove it: files that were edited on "
                                                    "Windows have one at the end of each line");
  }
  return text;
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char letter) { return std::tolower(letter); });
  return text;
}

bool flag(const char* name) {
  const std::string text = lower(variable(name));
  if (text == "1" || text == "true" || text == "yes" || text == "on") return true;
  if (text.empty() || text == "0" || text == "false" || text == "no" || text == "off") return false;
  throw std::invalid_argument(std::string(name) + "='" + text + "' is invalid; use 1 or 0");
}

std::string read_file(const std::string& path) {
  // A pipe would block the trainer, and a device may never end.
  const int descriptor = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (descriptor < 0) throw std::invalid_argument("cannot read " + path + "; choose a readable file");
  struct stat found {};
  std::string content;
  bool usable = fstat(descriptor, &found) == 0 && S_ISREG(found.st_mode);
  // It may grow while it is read.
  char part[4096];
  ssize_t size = 0;
  while (usable && (size = read(descriptor, part, sizeof part)) > 0) {
    content.append(part, static_cast<std::size_t>(size));
    usable = content.size() <= kMostBytes;
  }
  close(descriptor);
  if (!usable || size < 0) {
    throw std::invalid_argument("cannot read " + path + ": it is not a regular file of at most " +
                                std::to_string(kMostBytes) + " bytes; choose a readable file");
  }
  return content;
}

// The host of a server in small letters, without a dot at its end; empty if another name server is asked for it.
std::string host_of(const std::string& target) {
  // With dns://NAME-SERVER/, localhost may be any machine.
  static const std::regex kServer("(?:(?:ipv4|ipv6|dns):(?:///)?)?(?:\\[([^\\]]+)\\]|([^:/]+)):[0-9]+");
  std::smatch found;
  if (!std::regex_match(target, found, kServer)) return "";
  std::string host = lower(found[1].matched ? found[1] : found[2]);
  if (!host.empty() && host.back() == '.') host.pop_back();
  return host;
}

bool is_loopback(const std::string& target) {
  const auto starts = [&](const std::string& text) { return target.rfind(text, 0) == 0; };
  if (starts("unix:") || starts("unix-abstract:")) return true;
  const std::string host = host_of(target);
  in_addr ipv4{};
  if (inet_pton(AF_INET, host.c_str(), &ipv4) == 1) return ntohl(ipv4.s_addr) >> 24 == IN_LOOPBACKNET;
  in6_addr ipv6{};
  // Without the zone of its interface.
  if (inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), &ipv6) == 1) {
    return IN6_IS_ADDR_LOOPBACK(&ipv6) || (IN6_IS_ADDR_V4MAPPED(&ipv6) && ipv6.s6_addr[12] == IN_LOOPBACKNET);
  }
  return host == "localhost";
}

// Whether the address of one server is this machine's by its text: any loopback address or name, or its own name. A name may
// lead elsewhere, so that this is no reason to send a token in clear text.
bool is_this_machine(const std::string& server) {
  static const std::set<std::string> kNames{"localhost.localdomain", "localhost4", "localhost6", "ip6-localhost",
                                            "ip6-loopback"};
  // What resolvers make of a short IPv4 address, and the addresses of no interface, which Linux connects to itself.
  static const std::regex kShort("127(\\.[0-9]+){1,2}|0(\\.0){0,3}");
  static const std::regex kBelowLocalhost(".*\\.localhost");
  std::array<char, 256> own{};
  gethostname(own.data(), own.size() - 1);
  const std::string name = lower(own.data()), host = host_of(server);
  in6_addr ipv6{};
  const bool unspecified = inet_pton(AF_INET6, host.c_str(), &ipv6) == 1 && IN6_IS_ADDR_UNSPECIFIED(&ipv6);
  return is_loopback(server) || kNames.count(host) > 0 || unspecified || std::regex_match(host, kShort) ||
         std::regex_match(host, kBelowLocalhost) ||
         (!host.empty() && (host == name || host == name.substr(0, name.find('.'))));
}

std::shared_ptr<grpc::ChannelCredentials> channel_credentials(const std::string& address, const Credentials& credentials) {
  if (!credentials.tls && credentials.ca_file.empty() && credentials.cert_file.empty() && credentials.key_file.empty()) {
    if (!credentials.token.empty() && !credentials.insecure && !is_loopback(address)) {
      throw std::invalid_argument("refusing to send the token to " + address +
                                  " in clear text: enable TLS (WATTWISE_TLS=1 or tls), or allow it if the network is "
                                  "trusted (WATTWISE_INSECURE=1 or insecure)");
    }
    return grpc::InsecureChannelCredentials();
  }
  if (credentials.cert_file.empty() != credentials.key_file.empty()) {
    const std::string fault =
        credentials.key_file.empty() ? "cert_file is set without key_file" : "key_file is set without cert_file";
    throw std::invalid_argument(fault + ": set both, a certificate and its key");
  }
  grpc::SslCredentialsOptions options;
  if (!credentials.ca_file.empty()) options.pem_root_certs = read_file(credentials.ca_file);
  if (!credentials.cert_file.empty()) {
    options.pem_cert_chain = read_file(credentials.cert_file);
    options.pem_private_key = read_file(credentials.key_file);
  }
  return grpc::SslCredentials(options);
}

std::shared_ptr<grpc::Channel> channel(const std::string& address, const Credentials& credentials, const Pings& pings) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstPause.count());
  // Despite its name, this is the minimum time that an attempt to connect has, including the TLS handshake.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kLongestPause.count());
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, pings.interval_ms);
  // Newer versions of gRPC than many headers wait for the answer to a ping for the second time, by default a minute.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, pings.timeout_ms);
  arguments.SetInt("grpc.http2.ping_timeout_ms", pings.timeout_ms);
  // This client has its own retries. With gRPC's, a stream that begins while the server closes the connection sometimes
  // never ends.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // Spreads the clients over the addresses of one name, from gRPC 1.55 on.
  arguments.SetServiceConfigJSON(R"({"loadBalancingConfig": [{"pick_first": {"shuffleAddressList": true}}]})");
  // A proxy cannot reach this machine's loopback interface, and must not receive a token for it.
  if (is_this_machine(address)) arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address, channel_credentials(address, credentials), arguments);
}

v1::GetNextBatchSizeRequest launch_request(const std::string& job_id, const std::string& launch_id) {
  v1::GetNextBatchSizeRequest request;
  request.set_job_id(job_id);
  request.set_launch_id(launch_id);
  std::array<char, 256> host{};
  // For people who look at the trial.
  if (gethostname(host.data(), host.size() - 1) == 0) (*request.mutable_labels())["host"] = host.data();
  return request;
}

}  // namespace

Error::Error(const grpc::Status& status) : std::runtime_error(shown(status.error_message())), code(status.error_code()) {
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return;
  google::rpc::ErrorInfo info;
  google::rpc::BadRequest faults;
  for (const auto& detail : details.details()) {
    if (detail.UnpackTo(&info) && info.domain() == kDomain) {
      reason = info.reason();
      for (const auto& [key, value] : info.metadata()) metadata.emplace(shown(key), shown(value));
    } else if (detail.UnpackTo(&faults)) {
      for (const auto& fault : faults.field_violations()) violations.push_back({shown(fault.field()), shown(fault.description())});
    }
  }
}

Error Error::missing_metric(const std::string& reason, const std::string& field) {
  const std::string fault = "is not set; set the validation metric after the epoch, or NaN if training has diverged";
  Error error(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, field + " " + fault));
  error.reason = reason;
  error.violations.push_back({field, fault});
  return error;
}

Error Error::invalid_answer(const std::string& call, const std::string& fault) {
  return Error(grpc::Status(grpc::StatusCode::INTERNAL, "the server gave an invalid answer to " + call + ": " + fault));
}

bool Error::retryable() const {
  if (const auto entry = metadata.find("retryable"); entry != metadata.end()) return entry->second == "true";
  // An overloaded server cancels calls.
  return code == grpc::StatusCode::UNAVAILABLE || code == grpc::StatusCode::CANCELLED;
}

bool Error::unknown_trial() const {
  return reason == "ERROR_REASON_JOB_NOT_FOUND" || reason == "ERROR_REASON_TRIAL_NOT_FOUND";
}

bool Error::deleted_trial() const { return reason == "ERROR_REASON_TRIAL_DELETED"; }

bool Error::nothing_left() const { return reason == "ERROR_REASON_NO_BATCH_SIZE_LEFT"; }

bool Error::server_away() const {
  // Without a reason, the status is not that of a Wattwise server.
  if (reason.empty()) return true;
  // By the status, because a later server has more reasons.
  switch (code) {
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::NOT_FOUND:
    case grpc::StatusCode::ALREADY_EXISTS:
    case grpc::StatusCode::FAILED_PRECONDITION:
      return false;
    default:
      return true;
  }
}

bool Error::denied() const {
  return code == grpc::StatusCode::UNAUTHENTICATED || code == grpc::StatusCode::PERMISSION_DENIED;
}

Credentials Credentials::from_env() {
  Credentials credentials;
  credentials.token = variable("WATTWISE_TOKEN");
  if (const std::string file = variable("WATTWISE_TOKEN_FILE"); credentials.token.empty() && !file.empty()) {
    std::istringstream(read_file(file)) >> credentials.token;
  }
  credentials.tls = flag("WATTWISE_TLS");
  credentials.ca_file = variable("WATTWISE_TLS_CA");
  credentials.cert_file = variable("WATTWISE_TLS_CERT");
  credentials.key_file = variable("WATTWISE_TLS_KEY");
  credentials.insecure = flag("WATTWISE_INSECURE");
  return credentials;
}

std::string new_id() {
  std::random_device random;
  std::ostringstream text;
  for (int i = 0; i < 4; ++i) {
    text.width(8);
    text.fill('0');
    text << std::hex << static_cast<std::uint32_t>(random());
  }
  return text.str();
}

Client::Client(const std::string& address, const Credentials& credentials) : token_(credentials.token) {
  std::vector<Server> servers;
  const auto targets = parse_address(address);
  for (const std::string& target : targets) {
    const bool several = targets.size() > 1 || target.rfind("dns:", 0) == 0;
    const auto opened = channel(target, credentials, several ? kFrequentPings : kPings);
    servers.push_back({target, opened, v1::BatchSizeOptimizer::NewStub(opened), v1::JobReader::NewStub(opened),
                       v1::JobControl::NewStub(opened), v1::ServerInfo::NewStub(opened)});
  }
  servers_ = std::make_unique<Servers>(std::move(servers));
}

void Client::prepare(grpc::ClientContext& context, const std::string& call_id) const {
  context.AddMetadata("x-request-id", call_id);
  if (!token_.empty()) context.AddMetadata("authorization", "Bearer " + token_);
}

void Client::retrying(const std::function<grpc::Status(grpc::ClientContext&, const Server&)>& attempt,
                      Timeout call_timeout) const {
  const auto deadline = Clock::now() + call_timeout.value_or(timeout);
  const std::string call_id = new_id();
  std::minstd_rand random{std::random_device{}()};
  for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    grpc::ClientContext context;
    prepare(context, call_id);
    context.set_deadline(std::chrono::system_clock::now() + (deadline - Clock::now()));
    const Server& server = servers_->current();
    const grpc::Status status = attempt(context, server);
    const bool away = status.error_code() == grpc::StatusCode::UNAVAILABLE;
    const bool late = status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
    if (!away && !late) servers_->end_outage();
    if (status.ok()) return;
    const Error error(status);
    if (away || late) servers_->move_from(server);
    if (away && servers_->begin_outage()) {
      warn("no answer from " + server.target + ", calls are retried: " + error.what());
    }
    // Half of the pause is random, so that the trainers of one server do not all retry at the same time.
    const milliseconds wait{std::uniform_int_distribution<long>(pause.count() / 2, pause.count())(random)};
    if (!error.retryable() || Clock::now() + wait > deadline) throw error;
    servers_->wait(wait);
  }
}

void Client::print_warning(const std::string& message) { std::cerr << message + "\n"; }

v1::RegisterJobResponse Client::register_job(v1::JobSpec spec, Timeout call_timeout) {
  v1::RegisterJobRequest request;
  *request.mutable_job() = std::move(spec);
  auto response = call(&v1::BatchSizeOptimizer::Stub::RegisterJob, request, call_timeout);
  check_registered(response, request.job());
  const std::lock_guard lock(mutex_);
  specs_[request.job().job_id()] = response.job().spec();
  return response;
}

v1::GetNextBatchSizeResponse Client::get_next_batch_size(const std::string& job_id, const std::string& launch_id) {
  return next(launch_request(job_id, launch_id));
}

v1::GetNextBatchSizeResponse Client::resume_trial(const std::string& job_id, const std::string& launch_id) {
  auto request = launch_request(job_id, launch_id);
  request.set_resume(true);
  return next(request);
}

v1::GetNextBatchSizeResponse Client::next(const v1::GetNextBatchSizeRequest& request) {
  auto response = call(&v1::BatchSizeOptimizer::Stub::GetNextBatchSize, request);
  check_trial("GetNextBatchSize", *response.mutable_trial(), request.job_id(), request.launch_id());
  const std::lock_guard lock(mutex_);
  if (const auto found = specs_.find(request.job_id()); found != specs_.end()) {
    check_dispatched("GetNextBatchSize", response.trial(), found->second);
  }
  return response;
}

v1::Decision Client::report_result(const v1::TrainingResult& result, Timeout call_timeout) {
  if (!result.measurement().has_metric()) throw Error::missing_metric("ERROR_REASON_INVALID_RESULT", "result.measurement.metric");
  v1::ReportResultRequest request;
  *request.mutable_result() = result;
  auto response = call(&v1::BatchSizeOptimizer::Stub::ReportResult, request, call_timeout);
  check_decision("ReportResult", response);
  return response.decision();
}

v1::Decision Client::heartbeat(const v1::TrialId& trial, Timeout call_timeout) {
  v1::HeartbeatRequest request;
  *request.mutable_trial() = trial;
  auto response = call(&v1::BatchSizeOptimizer::Stub::Heartbeat, request, call_timeout);
  check_decision("Heartbeat", response);
  return response.decision();
}

v1::Trial Client::end_trial(const v1::TrialId& trial, v1::EndReason reason, Timeout call_timeout) {
  v1::EndTrialRequest request;
  *request.mutable_trial() = trial;
  request.set_end_reason(reason);
  auto response = call(&v1::BatchSizeOptimizer::Stub::EndTrial, request, call_timeout);
  check_trial("EndTrial", *response.mutable_trial(), trial.job_id(), trial.launch_id(), trial.trial_number());
  return response.trial();
}

v1::Trial Client::lookup_trial(const std::string& job_id, const std::string& launch_id, Timeout call_timeout) {
  v1::LookupTrialRequest request;
  request.set_job_id(job_id);
  request.set_launch_id(launch_id);
  auto response = call(&v1::BatchSizeOptimizer::Stub::LookupTrial, request, call_timeout);
  check_trial("LookupTrial", *response.mutable_trial(), job_id, launch_id);
  return response.trial();
}

v1::ImportTrialResponse Client::import_trial(const v1::ImportTrialRequest& trial, Timeout call_timeout) {
  for (int place = 0; place < trial.measurements_size(); ++place) {
    if (!trial.measurements(place).has_metric()) {
      throw Error::missing_metric("ERROR_REASON_INVALID_REQUEST", "measurements[" + std::to_string(place) + "].metric");
    }
  }
  auto response = call(&v1::BatchSizeOptimizer::Stub::ImportTrial, trial, call_timeout);
  check_trial("ImportTrial", *response.mutable_trial(), trial.job_id(), trial.launch_id());
  return response;
}

v1::GetJobResponse Client::get_job(const std::string& job_id) {
  v1::GetJobRequest request;
  request.set_job_id(job_id);
  return call(&v1::JobReader::Stub::GetJob, request);
}

v1::Job Client::reset_job(const std::string& job_id) {
  v1::ResetJobRequest request;
  request.set_job_id(job_id);
  request.set_request_id(new_id());
  return call(&v1::JobControl::Stub::ResetJob, request).job();
}

v1::SetTrialExcludedResponse Client::set_trial_excluded(const v1::TrialId& trial, bool excluded) {
  v1::SetTrialExcludedRequest request;
  *request.mutable_trial() = trial;
  request.set_excluded(excluded);
  return call(&v1::JobControl::Stub::SetTrialExcluded, request);
}

v1::Job Client::set_batch_size_banned(const std::string& job_id, int batch_size, bool banned) {
  v1::SetBatchSizeBannedRequest request;
  request.set_job_id(job_id);
  request.set_batch_size(batch_size);
  request.set_banned(banned);
  return call(&v1::JobControl::Stub::SetBatchSizeBanned, request).job();
}

v1::Job Client::set_pinned_batch_size(const std::string& job_id, std::optional<int> batch_size) {
  v1::SetPinnedBatchSizeRequest request;
  request.set_job_id(job_id);
  if (batch_size) request.set_batch_size(*batch_size);
  return call(&v1::JobControl::Stub::SetPinnedBatchSize, request).job();
}

v1::Job Client::readmit_batch_size(const std::string& job_id, int batch_size) {
  v1::ReadmitBatchSizeRequest request;
  request.set_job_id(job_id);
  request.set_batch_size(batch_size);
  request.set_request_id(new_id());
  return call(&v1::JobControl::Stub::ReadmitBatchSize, request).job();
}

v1::Job Client::set_job_paused(const std::string& job_id, bool paused) {
  v1::SetJobPausedRequest request;
  request.set_job_id(job_id);
  request.set_paused(paused);
  return call(&v1::JobControl::Stub::SetJobPaused, request).job();
}

v1::Job Client::request_baseline(const std::string& job_id) {
  v1::RequestBaselineRequest request;
  request.set_job_id(job_id);
  request.set_request_id(new_id());
  return call(&v1::JobControl::Stub::RequestBaseline, request).job();
}

v1::Job Client::set_baseline_every(const std::string& job_id, int every) {
  v1::SetBaselineEveryRequest request;
  request.set_job_id(job_id);
  request.set_every(every);
  return call(&v1::JobControl::Stub::SetBaselineEvery, request).job();
}

v1::Job Client::set_job_policy(const std::string& job_id, const v1::PolicySpec& policy) {
  v1::SetJobPolicyRequest request;
  request.set_job_id(job_id);
  *request.mutable_policy() = policy;
  return call(&v1::JobControl::Stub::SetJobPolicy, request).job();
}

}  // namespace wattwise
