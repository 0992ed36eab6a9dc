// The client of a Wattwise server: calls with deadlines, retries and typed errors.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "servers.hpp"

namespace wattwise {

// A fault in one field of a request.
struct Violation {
  std::string field;
  std::string description;
};

// A call that was refused or could not be made. what() says what to do.
class Error : public std::runtime_error {
 public:
  explicit Error(const grpc::Status& status);
  // A request that was not sent, because a measurement in it has no metric.
  static Error missing_metric(const std::string& reason, const std::string& field);
  // An answer that is incomplete, unusable or about something else: the server is faulty, or another one.
  static Error invalid_answer(const std::string& call, const std::string& fault);

  grpc::StatusCode code;
  // Name of the v1::ErrorReason, such as "ERROR_REASON_JOB_DIFFERS"; empty if the error is not from a Wattwise server.
  // A later server may send one that this client does not know: go by code and retryable() then.
  std::string reason;
  // The keys that v1::ErrorReason documents for each reason.
  std::map<std::string, std::string> metadata;
  // The faults of the request, or what differs, by field. Of very many, a last one without a field says how many more there
  // are.
  std::vector<Violation> violations;

  // Whether the same call may succeed later.
  bool retryable() const;
  // Whether the server has not refused the request itself: it could not be reached in time, has failed or reached a limit,
  // does not accept the caller (see denied()), or gave an invalid answer. Continue training: reports are cumulative, so the
  // next one replaces a lost one. An error with a reason that is newer than this client goes by its status.
  bool server_away() const;
  // Whether the token or the certificate of the caller is not accepted.
  bool denied() const;
  // Whether the server has no such job or trial, such as after the loss of its database.
  bool unknown_trial() const;
  // Whether the trial was deleted with its job: stop its training, and do not register the job again.
  bool deleted_trial() const;
  // Whether no batch size of the job is left to try.
  bool nothing_left() const;
};

// A token and the files for TLS. The default has neither.
struct Credentials {
  // The output of `wattwise token create`; empty: no token.
  std::string token;
  // Turns TLS on; so does any of the files. Files are PEM. An empty ca_file means the certificate authorities of gRPC.
  bool tls = false;
  std::string ca_file;
  std::string cert_file;
  std::string key_file;
  // Sends the token without TLS even to another machine, where others can read it.
  bool insecure = false;

  // Reads WATTWISE_TOKEN, _TOKEN_FILE, _TLS, _TLS_CA, _TLS_CERT, _TLS_KEY and _INSECURE.
  static Credentials from_env();
};

// 128 random bits, by which the server recognizes a retry.
std::string new_id();

// A connection to a server, or to one of several on one database, opened by the first call. Thread-safe; calls throw Error.
class Client {
 public:
  // The address is host:port, such as "localhost:50051". Several servers are a list, "host1:50051,host2:50051",
  // "ipv4:10.0.0.1:50051,10.0.0.2:50051" or "ipv6:[fd00::1]:50051,[fd00::2]:50051", or a name with several addresses,
  // "dns:///name:50051". The client uses one, in an order drawn at random, and the next if that one cannot be reached.
  // Throws std::invalid_argument if the address is malformed or the credentials are invalid.
  explicit Client(const std::string& address, const Credentials& credentials = {});

  // The time that a call may take with all its retries; a call can override it. Change it only before the first call.
  std::chrono::milliseconds timeout{30'000};
  using Timeout = std::optional<std::chrono::milliseconds>;

  // Receives each warning about a session's trial once, and one about each outage; by default they are printed to stderr.
  // Change it only before the first call. The thread of a session calls it, too.
  std::function<void(const std::string&)> warn = print_warning;

  // Creates the job, or confirms that the one under its id has the identical configuration.
  v1::RegisterJobResponse register_job(v1::JobSpec spec, Timeout call_timeout = {});
  // Dispatches the next trial. Generate the launch id once per launch: the same id returns the same trial.
  v1::GetNextBatchSizeResponse get_next_batch_size(const std::string& job_id,
                                                   const std::string& launch_id = new_id());
  // For a launch that continues from a checkpoint: if the trial with this launch id was preempted or lost, it is
  // dispatched again.
  v1::GetNextBatchSizeResponse resume_trial(const std::string& job_id, const std::string& launch_id);
  // Reports an epoch with the sums since the trial's first epoch.
  // A result without a metric is not sent.
  v1::Decision report_result(const v1::TrainingResult& result, Timeout call_timeout = {});
  // Renews a trial's lease and returns whether to continue.
  v1::Decision heartbeat(const v1::TrialId& trial, Timeout call_timeout = {});
  // Ends a trial whose trainer exits. A trial that has ended before does not change.
  v1::Trial end_trial(const v1::TrialId& trial, v1::EndReason reason, Timeout call_timeout = {});
  // Returns the trial that the server has of a launch. It changes nothing on the server.
  v1::Trial lookup_trial(const std::string& job_id, const std::string& launch_id, Timeout call_timeout = {});
  // Records a trial, or the end of one, that could not be reported while it ran. The launch id makes the call safe to
  // retry; the job must be registered.
  v1::ImportTrialResponse import_trial(const v1::ImportTrialRequest& trial, Timeout call_timeout = {});

  // Returns one job, and what it knows about its batch sizes.
  v1::GetJobResponse get_job(const std::string& job_id);
  // Begins the job's search again. Its trials stay in the history but no longer count.
  v1::Job reset_job(const std::string& job_id);
  // Excludes a trial from the job's search, or includes it again.
  v1::SetTrialExcludedResponse set_trial_excluded(const v1::TrialId& trial, bool excluded);
  // Bans a batch size, so that the search does not choose it, or lifts its ban.
  v1::Job set_batch_size_banned(const std::string& job_id, int batch_size, bool banned);
  // Pins a batch size, so that every launch gets it; nullopt unpins it.
  v1::Job set_pinned_batch_size(const std::string& job_id, std::optional<int> batch_size);
  // Readmits a batch size to the search: its failures, its memory and its pruning no longer count.
  v1::Job readmit_batch_size(const std::string& job_id, int batch_size);
  // Pauses the job's search, so that launches get the best known batch size, or resumes it.
  v1::Job set_job_paused(const std::string& job_id, bool paused);
  // Requests that the job's next launch gets the default batch size, to compare with.
  v1::Job request_baseline(const std::string& job_id);
  // Gives one launch in so many the default batch size from now on, 2 or more; 0 ends that.
  v1::Job set_baseline_every(const std::string& job_id, int every);
  // Changes the job's policy; the search is rebuilt from the job's trials.
  v1::Job set_job_policy(const std::string& job_id, const v1::PolicySpec& policy);

  // Any other call: call(&v1::JobReader::Stub::GetTrial, request).
  template <class Stub, class Request, class Response>
  Response call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*), const Request& request,
                Timeout call_timeout = {}) {
    Response response;
    const auto attempt = [&](grpc::ClientContext& context, const Server& server) {
      if constexpr (std::is_same_v<Stub, v1::JobReader::Stub>) {
        return (*server.reader.*method)(&context, request, &response);
      } else if constexpr (std::is_same_v<Stub, v1::JobControl::Stub>) {
        return (*server.control.*method)(&context, request, &response);
      } else if constexpr (std::is_same_v<Stub, v1::ServerInfo::Stub>) {
        return (*server.info.*method)(&context, request, &response);
      } else {
        return (*server.trainer.*method)(&context, request, &response);
      }
    };
    retrying(attempt, call_timeout);
    return response;
  }
  // The stubs of the server that is used now, for streams: ask for them again for each.
  v1::BatchSizeOptimizer::Stub& trainer() { return *servers_->current().trainer; }
  v1::JobReader::Stub& reader() { return *servers_->current().reader; }
  // Adds the metadata of a call: its id in the server's log, and the token.
  void prepare(grpc::ClientContext& context, const std::string& call_id) const;

 private:
  v1::GetNextBatchSizeResponse next(const v1::GetNextBatchSizeRequest& request);
  static void print_warning(const std::string& message);
  // Repeats a call until it succeeds, a retry does not help, or the timeout has passed.
  void retrying(const std::function<grpc::Status(grpc::ClientContext&, const Server&)>& attempt, Timeout call_timeout) const;

  std::string token_;
  std::unique_ptr<Servers> servers_;
  // The jobs that were registered here: a trial must have one of the batch sizes.
  std::mutex mutex_;
  std::map<std::string, v1::JobSpec> specs_;
};

}  // namespace wattwise
