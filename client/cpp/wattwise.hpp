// Calls a Wattwise server: every call with a deadline, retries and errors that say what to do.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "wattwise/v1/batch_size_optimizer.grpc.pb.h"
#include "wattwise/v1/job_admin.grpc.pb.h"

namespace wattwise {

// One fault of one field of a request.
struct Violation {
  std::string field;
  std::string description;
};

// A call that was refused or could not be made; what() says what to do.
class Error : public std::runtime_error {
 public:
  explicit Error(const grpc::Status& status);

  grpc::StatusCode code;
  // Name of the v1::ErrorReason, such as "ERROR_REASON_JOB_DIFFERS"; empty if no Wattwise server gave one.
  std::string reason;
  // What the server added, as v1::ErrorReason documents it for each reason.
  std::map<std::string, std::string> metadata;
  std::vector<Violation> violations;

  // Whether the same call may succeed later.
  bool retryable() const;
  // Whether the server could not be reached in time, which is no reason to end a training: its sums are cumulative, so
  // that the next report makes up for one that was lost.
  bool server_away() const;
};

// A token and what TLS needs; as it is, for a server on this machine that asks for neither.
struct Credentials {
  // What `wattwise token create` printed; empty sends none.
  std::string token;
  // Encrypts the connection; so does naming a file. Files are PEM; without authorities it believes those of gRPC.
  bool tls = false;
  std::string ca_file;
  std::string cert_file;
  std::string key_file;
  // Sends the token even where it can be read on the way: without TLS to another machine.
  bool insecure = false;

  // What WATTWISE_TOKEN, _TOKEN_FILE, _TLS, _TLS_CA, _TLS_CERT, _TLS_KEY and _INSECURE say.
  static Credentials from_env();
};

// 128 random bits by which the server knows a call that is repeated.
std::string new_request_id();

// A connection to a server, which opens on first use. May be used from any thread; calls throw Error.
class Client {
 public:
  // An address is such as "localhost:50051". Throws std::invalid_argument if the credentials cannot be used.
  explicit Client(const std::string& address, const Credentials& credentials = {});

  // What one call may take with all its retries, unless the call says otherwise; to be changed before the first call.
  std::chrono::milliseconds timeout{30'000};
  using Within = std::optional<std::chrono::milliseconds>;

  // Creates the job, or confirms that the one under its id has the identical configuration. A spec without an id is
  // given one here, so that a retry asks for the same job again.
  v1::RegisterJobResponse register_job(v1::JobSpec spec);
  // Dispatches the next trial. The request id is made once per launch: with the same one the answer is the same trial.
  v1::GetNextBatchSizeResponse next_batch_size(const std::string& job_id,
                                               const std::string& request_id = new_request_id());
  // For a launch that goes on from a checkpoint: the trial of the request id that it began with is taken back if it was
  // preempted or lost meanwhile.
  v1::GetNextBatchSizeResponse resume_trial(const std::string& job_id, const std::string& request_id);
  // Reports one epoch's cumulative measurement.
  v1::Decision report_result(const v1::TrainingResult& result, Within within = {});
  // Renews a trial's lease and tells whether to go on.
  v1::Decision heartbeat(const v1::TrialId& trial, Within within = {});
  // Says that the trainer is gone; a trial that is decided is left as it is.
  v1::Trial end_trial(const v1::TrialId& trial, v1::EndReason reason, Within within = {});
  // One job as it stands.
  v1::Job get_job(const std::string& job_id);

  // Any other call: call(client.admin(), &v1::JobAdmin::Stub::GetTrial, request).
  template <class Stub, class Request, class Response>
  Response call(Stub& stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                const Request& request, Within within = {}) {
    Response response;
    retrying([&](grpc::ClientContext& context) { return (stub.*method)(&context, request, &response); }, within);
    return response;
  }
  v1::BatchSizeOptimizer::Stub& trainer() { return *trainer_; }
  v1::JobAdmin::Stub& admin() { return *admin_; }
  // Adds what every call carries: its name in the server's log, and the token.
  void prepare(grpc::ClientContext& context, const std::string& name) const;

 private:
  // Makes a call until it succeeds, a retry does not help, or the timeout is over.
  void retrying(const std::function<grpc::Status(grpc::ClientContext&)>& attempt, Within within) const;

  std::string token_;
  std::unique_ptr<v1::BatchSizeOptimizer::Stub> trainer_;
  std::unique_ptr<v1::JobAdmin::Stub> admin_;
};

}  // namespace wattwise
