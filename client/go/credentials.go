package wattwise

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// Credentials are a token and the files for TLS. The zero value has neither.
type Credentials struct {
	// Token is the output of `wattwise token create`; empty: no token.
	Token string
	// TLS turns TLS on; so does any of the files below.
	TLS bool
	// CAFile has the trusted certificate authorities in PEM; empty: those of the system.
	CAFile string
	// CertFile and KeyFile are the client certificate and its key in PEM, for mutual TLS.
	CertFile, KeyFile string
	// Insecure sends the token without TLS even to another machine, where others can read it.
	Insecure bool
}

// CredentialsFromEnv reads WATTWISE_TOKEN, _TOKEN_FILE, _TLS, _TLS_CA, _TLS_CERT, _TLS_KEY and _INSECURE.
func CredentialsFromEnv() (credentials Credentials, err error) {
	credentials = Credentials{
		Token:    os.Getenv("WATTWISE_TOKEN"),
		CAFile:   os.Getenv("WATTWISE_TLS_CA"),
		CertFile: os.Getenv("WATTWISE_TLS_CERT"),
		KeyFile:  os.Getenv("WATTWISE_TLS_KEY"),
	}
	if credentials.TLS, err = flag("WATTWISE_TLS"); err != nil {
		return credentials, err
	}
	if credentials.Insecure, err = flag("WATTWISE_INSECURE"); err != nil {
		return credentials, err
	}
	if file := os.Getenv("WATTWISE_TOKEN_FILE"); credentials.Token == "" && file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return credentials, fmt.Errorf("cannot read the token file: %w", err)
		}
		credentials.Token = strings.TrimSpace(string(text))
	}
	return credentials, nil
}

func flag(name string) (bool, error) {
	switch text := strings.ToLower(os.Getenv(name)); text {
	case "1", "true", "yes", "on":
		return true, nil
	case "", "0", "false", "no", "off":
		return false, nil
	default:
		return false, fmt.Errorf("%s=%q is invalid; use 1 or 0", name, text)
	}
}

func (c Credentials) usesTLS() bool {
	return c.TLS || c.CAFile != "" || c.CertFile != "" || c.KeyFile != ""
}

func (c Credentials) dialOption(address destination) (grpc.DialOption, error) {
	if !c.usesTLS() {
		if c.Token != "" && !c.Insecure && !address.isLoopback() {
			return nil, fmt.Errorf("refusing to send the token to %s in clear text: enable TLS (WATTWISE_TLS=1 or TLS), "+
				"or allow it if the network is trusted (WATTWISE_INSECURE=1 or Insecure)", address.target)
		}
		return grpc.WithInsecure(), nil
	}
	config, err := c.tlsConfig()
	if err != nil {
		return nil, err
	}
	return grpc.WithTransportCredentials(credentials.NewTLS(config)), nil
}

func (c Credentials) tlsConfig() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("cannot read CAFile: %w; choose a readable file", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s (CAFile) contains no PEM certificate: it should start with "+
				"-----BEGIN CERTIFICATE-----", c.CAFile)
		}
	}
	if c.CertFile != "" || c.KeyFile != "" {
		if c.KeyFile == "" {
			return nil, errors.New("CertFile is set without KeyFile: set both, a certificate and its key")
		}
		if c.CertFile == "" {
			return nil, errors.New("KeyFile is set without CertFile: set both, a certificate and its key")
		}
		pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("%s (CertFile) and %s (KeyFile) are not a certificate and its key (%w): both must be "+
				"PEM files, must belong together, and the key must have no passphrase", c.CertFile, c.KeyFile, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// isLoopback returns whether all traffic stays on this machine.
func (d destination) isLoopback() bool {
	for _, server := range d.servers {
		host, _, _ := net.SplitHostPort(server)
		if host != "localhost" && !net.ParseIP(host).IsLoopback() {
			return false
		}
	}
	return true
}
