#include "wattwise.hpp"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>
#include <thread>

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
// A server that vanished without a word is noticed within 40 seconds.
constexpr int kKeepaliveMs = 30'000;
constexpr int kKeepaliveTimeoutMs = 10'000;

std::string variable(const char* name) {
  const char* found = std::getenv(name);
  return found == nullptr ? "" : found;
}

bool yes(const char* name) {
  std::string said = variable(name);
  std::transform(said.begin(), said.end(), said.begin(), [](unsigned char letter) { return std::tolower(letter); });
  if (said == "1" || said == "true" || said == "yes" || said == "on") return true;
  if (said.empty() || said == "0" || said == "false" || said == "no" || said == "off") return false;
  throw std::invalid_argument(std::string(name) + " is '" + said + "': give 1 or 0");
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::invalid_argument("cannot read " + path + ": name a file that you can read");
  return {std::istreambuf_iterator<char>(file), {}};
}

bool is_loopback(const std::string& address) {
  const auto starts = [&](const std::string& text) { return address.rfind(text, 0) == 0; };
  // Not 127.0.0.0/8 as a whole: a name such as 127.example.org begins alike.
  return starts("unix:") || starts("localhost:") || starts("127.0.0.1:") || starts("[::1]:");
}

std::shared_ptr<grpc::ChannelCredentials> channel_credentials(const std::string& address, const Credentials& given) {
  if (!given.tls && given.ca_file.empty() && given.cert_file.empty() && given.key_file.empty()) {
    if (!given.token.empty() && !given.insecure && !is_loopback(address)) {
      throw std::invalid_argument("the token is not sent to " + address +
                                  " in clear, where others could read it: turn TLS on, or spell out that nobody else "
                                  "is on the way (insecure, WATTWISE_INSECURE=1)");
    }
    return grpc::InsecureChannelCredentials();
  }
  if (given.cert_file.empty() != given.key_file.empty()) {
    throw std::invalid_argument("a certificate and its key go together: give both");
  }
  grpc::SslCredentialsOptions options;
  if (!given.ca_file.empty()) options.pem_root_certs = read_file(given.ca_file);
  if (!given.cert_file.empty()) {
    options.pem_cert_chain = read_file(given.cert_file);
    options.pem_private_key = read_file(given.key_file);
  }
  return grpc::SslCredentials(options);
}

std::shared_ptr<grpc::Channel> channel(const std::string& address, const Credentials& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstPause.count());
  // Despite its name it is the time that one attempt has at least, with the handshake of TLS.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kLongestPause.count());
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  // A proxy that the environment names cannot reach this machine's loopback, and must not see a token for it.
  if (is_loopback(address)) arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address, channel_credentials(address, credentials), arguments);
}

v1::GetNextBatchSizeRequest launch_of(const std::string& job_id, const std::string& request_id) {
  v1::GetNextBatchSizeRequest request;
  request.set_job_id(job_id);
  request.set_request_id(request_id);
  return request;
}

}  // namespace

Error::Error(const grpc::Status& status) : std::runtime_error(status.error_message()), code(status.error_code()) {
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return;
  google::rpc::ErrorInfo info;
  google::rpc::BadRequest faults;
  for (const auto& detail : details.details()) {
    if (detail.UnpackTo(&info) && info.domain() == kDomain) {
      reason = info.reason();
      metadata.insert(info.metadata().begin(), info.metadata().end());
    } else if (detail.UnpackTo(&faults)) {
      for (const auto& fault : faults.field_violations()) violations.push_back({fault.field(), fault.description()});
    }
  }
}

bool Error::retryable() const {
  const auto said = metadata.find("retryable");
  return said == metadata.end() ? code == grpc::StatusCode::UNAVAILABLE : said->second == "true";
}

bool Error::server_away() const { return retryable() || code == grpc::StatusCode::DEADLINE_EXCEEDED; }

Credentials Credentials::from_env() {
  Credentials given;
  given.token = variable("WATTWISE_TOKEN");
  if (const std::string file = variable("WATTWISE_TOKEN_FILE"); given.token.empty() && !file.empty()) {
    std::istringstream(read_file(file)) >> given.token;
  }
  given.tls = yes("WATTWISE_TLS");
  given.ca_file = variable("WATTWISE_TLS_CA");
  given.cert_file = variable("WATTWISE_TLS_CERT");
  given.key_file = variable("WATTWISE_TLS_KEY");
  given.insecure = yes("WATTWISE_INSECURE");
  return given;
}

std::string new_request_id() {
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
  const auto opened = channel(address, credentials);
  trainer_ = v1::BatchSizeOptimizer::NewStub(opened);
  admin_ = v1::JobAdmin::NewStub(opened);
}

void Client::prepare(grpc::ClientContext& context, const std::string& name) const {
  context.AddMetadata("x-request-id", name);
  if (!token_.empty()) context.AddMetadata("authorization", "Bearer " + token_);
}

void Client::retrying(const std::function<grpc::Status(grpc::ClientContext&)>& attempt, Within within) const {
  const auto deadline = Clock::now() + within.value_or(timeout);
  const std::string name = new_request_id();
  std::minstd_rand random{std::random_device{}()};
  for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    grpc::ClientContext context;
    prepare(context, name);
    context.set_deadline(std::chrono::system_clock::now() + (deadline - Clock::now()));
    const grpc::Status status = attempt(context);
    if (status.ok()) return;
    const Error error(status);
    // Half of it at random, so that trainers that lost one server together do not come back together.
    const milliseconds wait{std::uniform_int_distribution<long>(pause.count() / 2, pause.count())(random)};
    if (!error.retryable() || Clock::now() + wait > deadline) throw error;
    std::this_thread::sleep_for(wait);
  }
}

v1::RegisterJobResponse Client::register_job(v1::JobSpec spec) {
  if (!spec.has_job_id()) spec.set_job_id(spec.job_id_prefix() + "-" + new_request_id().substr(0, 8));
  v1::RegisterJobRequest request;
  *request.mutable_job() = std::move(spec);
  return call(*trainer_, &v1::BatchSizeOptimizer::Stub::RegisterJob, request);
}

v1::GetNextBatchSizeResponse Client::next_batch_size(const std::string& job_id, const std::string& request_id) {
  return call(*trainer_, &v1::BatchSizeOptimizer::Stub::GetNextBatchSize, launch_of(job_id, request_id));
}

v1::GetNextBatchSizeResponse Client::resume_trial(const std::string& job_id, const std::string& request_id) {
  auto request = launch_of(job_id, request_id);
  request.set_resume(true);
  return call(*trainer_, &v1::BatchSizeOptimizer::Stub::GetNextBatchSize, request);
}

v1::Decision Client::report_result(const v1::TrainingResult& result, Within within) {
  v1::ReportResultRequest request;
  *request.mutable_result() = result;
  return call(*trainer_, &v1::BatchSizeOptimizer::Stub::ReportResult, request, within).decision();
}

v1::Decision Client::heartbeat(const v1::TrialId& trial, Within within) {
  v1::HeartbeatRequest request;
  *request.mutable_trial() = trial;
  return call(*trainer_, &v1::BatchSizeOptimizer::Stub::Heartbeat, request, within).decision();
}

v1::Trial Client::end_trial(const v1::TrialId& trial, v1::EndReason reason, Within within) {
  v1::EndTrialRequest request;
  *request.mutable_trial() = trial;
  request.set_reason(reason);
  return call(*trainer_, &v1::BatchSizeOptimizer::Stub::EndTrial, request, within).trial();
}

v1::Job Client::get_job(const std::string& job_id) {
  v1::GetJobRequest request;
  request.set_job_id(job_id);
  return call(*admin_, &v1::JobAdmin::Stub::GetJob, request).job();
}

}  // namespace wattwise
